"""What measures forerun itself: step times of the engine against the speed of memory."""
