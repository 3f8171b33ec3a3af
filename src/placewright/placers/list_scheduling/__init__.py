"""List schedulers: HEFT, PEFT, CPOP and Baechi's m-TOPO, m-ETF and m-SCT."""
