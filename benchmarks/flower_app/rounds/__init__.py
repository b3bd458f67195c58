"""Seconds a round of fedsps and of Flower's FedAvg."""
