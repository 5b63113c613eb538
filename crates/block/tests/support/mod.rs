//! Helpers that the tests share.
#![allow(dead_code, reason = "each test program uses its part")]

pub mod loop_device;
pub mod nbd;
