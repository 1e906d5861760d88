"""The process that stands for a program in a container: its stdin, stdout, stderr and end are the program's. Standard
library only."""
