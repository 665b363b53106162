"""The verify server: holds the target model and decides which proposed tokens are its own."""
