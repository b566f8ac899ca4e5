// Builds kwok, which plays the kubelet of nodes that are not there.
module fairlease.invalid/controlplane/kwok

go 1.26.0

require sigs.k8s.io/kwok v0.8.0
