"""What leaves hostler for people and collectors to look at, and what is masked before."""
