"""A real Kubernetes control plane on this machine, for tests, benchmarks and developers: no mock stands in for it.

`build` makes the binaries from Go modules, `plane` runs them on free loopback ports, `nodes` makes GPU nodes that are
not there (kwok plays their kubelets), `cluster` keeps one running in the background for a developer.
"""

from tools.controlplane.api import Answer, Api
from tools.controlplane.build import Missing, ensure
from tools.controlplane.nodes import Rack, add_nodes
from tools.controlplane.plane import Plane

__all__ = ["Answer", "Api", "Missing", "Plane", "Rack", "add_nodes", "ensure"]
