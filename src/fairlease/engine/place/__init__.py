"""Where pods run and which payer pays for each: packing, assignment of payers, liens, plan, bind (SEMANTICS §3, §5)."""
