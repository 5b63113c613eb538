//! Disks as users make them.

use crate::part::{Case, Part, Settings};

/// The part.
pub struct Disk;

impl Part for Disk {
    fn name(&self) -> &'static str {
        "disk"
    }

    fn share(&self) -> u32 {
        3
    }

    fn obstacle(&self, _: &Settings) -> Option<String> {
        Some("not built yet".into())
    }

    fn draw(&self, _: u64) -> Box<dyn Case> {
        unreachable!("it has an obstacle")
    }
}
