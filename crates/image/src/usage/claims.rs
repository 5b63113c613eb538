//! The bytes of an image's devices that are attributed already.
//!
//! Claims are ranges of bytes and not blocks, because clusters may begin inside a block (extent records), and inodes
//! share blocks with the ends of files. Lengths are cut at the end of the device before they are used, and a claim
//! takes logarithmic time, so lengths that lie cost nothing. Memory: an entry for each gap between claims, charged to
//! the account of the walk.

use crate::account::Account;
use crate::byte_runs::ChargedRuns;
use crate::{Address, Image, Space};

/// The answer to a claim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Bytes of the range that the device has.
    pub(crate) len_bytes: u64,
    /// Those of them that nothing claimed before.
    pub(crate) new_bytes: u64,
}

impl Claim {
    /// Bytes that an earlier claim has.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.len_bytes - self.new_bytes
    }

    /// Whether all of the range was claimed before.
    pub(crate) fn is_shared_whole(&self) -> bool {
        self.len_bytes > 0 && self.new_bytes == 0
    }
}

/// The claims on all devices of an image and on its metabox.
pub(super) struct Claims {
    image: Image,
    runs: ChargedRuns<1>,
}

impl Claims {
    /// No claims.
    pub(super) fn new(image: &Image, account: &Account) -> Self {
        Claims { image: image.clone(), runs: ChargedRuns::new(account) }
    }

    /// Whether a claim was lost for want of memory. From then on every claim is answered as if it was the first one.
    pub(super) fn is_over_budget(&self) -> bool {
        self.runs.is_over_budget()
    }

    /// Claims bytes of contents, whose address may be in the range of a device that is mapped into the address space
    /// of the image.
    pub(super) fn contents(&mut self, at: Address, len_bytes: u64) -> Claim {
        if at.space == Space::Metabox {
            return self.metadata(at, len_bytes);
        }
        match self.image.0.core.source.own_address(at) {
            Ok((device, offset)) => {
                // The table of devices has at most 65535.
                let space = Space::Device(device.try_into().unwrap_or(u16::MAX));
                self.metadata(Address { space, offset }, len_bytes)
            }
            Err(_) => Claim::default(),
        }
    }

    /// Claims bytes of metadata, or bytes whose device is known.
    pub(super) fn metadata(&mut self, at: Address, len_bytes: u64) -> Claim {
        let core = &self.image.0.core;
        let left_bytes = match at.space {
            Space::Device(device) => core.source.len_bytes(device).map(|end| end.saturating_sub(at.offset)),
            Space::Metabox => core.bytes_left_at(at),
        };
        let len_bytes = left_bytes.unwrap_or(0).min(len_bytes);
        let mut insert = || self.runs.insert(0, at, at.offset + len_bytes);
        let new_bytes = if len_bytes > 0 { insert() } else { None };
        Claim { len_bytes, new_bytes: new_bytes.unwrap_or(len_bytes) }
    }
}
