"""The compiled training step, with the programs it has and the steps it shares weights with."""
