//! Helpers of the tests: reference decoders that share no code with the crate, encoders, contents.
#![allow(dead_code, reason = "each test program uses its part")]

pub mod c842_reference;
pub mod cluster;
pub mod deflate_reference;
pub mod lzo_kernel_content;
pub mod lzo_reference;
pub mod numbers_slow;
