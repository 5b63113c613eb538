//! Operations of commands on the loop device of a disk, which servers have no privilege for.

use pagefold_control::error::{CliError, Exit, Result};
use pagefold_page::size::Human;
use pagefold_sys::{blockuse, memcg, swap};
use std::path::Path;

/// Runs swapoff on the device, if it is used as swap. Fails as busy if memory has no space for the pages that are
/// swapped out.
pub fn stop_swapping(device: &Path) -> Result<()> {
    let Some(area) = blockuse::swap_area(device)? else {
        return Ok(());
    };
    let room = swap::room_without(&area)?;
    if !room.fits() {
        return Err(CliError::new(
            Exit::Busy,
            format!(
                "swapoff {} is refused: {} would have to be swapped in, and only {} of memory and {} of other swap are \
                 free; end some processes or add swap first",
                device.display(),
                Human(room.used_bytes),
                Human(room.available_bytes),
                Human(room.other_swap_bytes)
            ),
        ));
    }
    let short = memcg::short_groups(room.used_bytes, room.other_swap_bytes)?;
    if let Some(group) = short.first() {
        return Err(CliError::new(
            Exit::Busy,
            format!(
                "swapoff {} is refused: the kernel would kill a process of the memory control group '{}', which \
                 has swapped out {} and whose limit of {} is too low by {}; raise its limit, end some of its \
                 processes, or add other swap first",
                device.display(),
                group.path.display(),
                Human(group.swapped_bytes),
                Human(group.limit_bytes),
                Human(group.short_bytes)
            ),
        ));
    }
    swapoff(device)
}

/// Calls swapoff(2), and again as long as the area gets emptier: the kernel fails with ENOMEM when it has no memory for
/// a moment, and when it has killed the process whose pages it was swapping in.
fn swapoff(device: &Path) -> Result<()> {
    let mut left = u64::MAX;
    loop {
        let failed = match swap::swapoff(device) {
            Ok(()) => return Ok(()),
            Err(e) => e,
        };
        match blockuse::swap_area(device)? {
            None => return Ok(()),
            Some(area) if failed.errno == libc::ENOMEM && area.used_bytes < left => left = area.used_bytes,
            Some(area) => {
                return Err(CliError::failed(format!(
                    "{failed}; {} of it are in use",
                    Human(area.used_bytes)
                )));
            }
        }
    }
}
