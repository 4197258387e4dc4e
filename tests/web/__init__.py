"""What tests of the browser side share: a server with faults, a real Chromium, pages to run code in."""
