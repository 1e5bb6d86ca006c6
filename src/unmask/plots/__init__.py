"""Figures: what they show (`runs`), how they are drawn (`curves`) and how all of them look (`style`)."""
