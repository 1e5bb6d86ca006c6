"""What contests share: a model and perhaps its twin do the same items in several ways, a row tells of each."""
