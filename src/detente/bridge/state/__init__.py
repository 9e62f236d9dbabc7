"""What a step trains: its values on the device, batches on their way there, results on their way back, files."""
