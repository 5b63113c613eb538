//! The table of suites. A new suite is a module and a line here.

use crate::case::Suite;
use crate::{disk, engine, image, memory};

/// All suites, in the order in which `runner` prefers them while none has used its share.
pub static ALL: [Suite; 4] = [engine::SUITE, disk::SUITE, image::SUITE, memory::SUITE];
