//! The pagefold engine.
