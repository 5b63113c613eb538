//! What is offered: a device under a name.

use super::NbdError;
use super::proto::can;
use crate::BlockDevice;
use std::sync::Arc;

/// The smallest and the preferred request, and the most data in one, bytes.
pub const BLOCK_SIZES: [u32; 3] = [1, 4096, MAX_DATA];
/// The most bytes one read or write request may carry.
pub const MAX_DATA: u32 = 32 << 20;
/// The most bytes of an export name or description, as the protocol has it.
const MAX_STRING: usize = 4096;

/// A device, the name clients ask for it by, and a line for people.
///
/// The empty name, the protocol's default, means this export too, since a server has only one.
#[derive(Clone)]
pub struct Export {
    name: String,
    description: String,
    device: Arc<dyn BlockDevice>,
    read_only: bool,
}

impl Export {
    /// Offers `device` as `name`, writable. A description longer than 4096 bytes is cut.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        device: Arc<dyn BlockDevice>,
    ) -> Result<Self, NbdError> {
        let (name, mut description) = (name.into(), description.into());
        if name.is_empty() || name.len() > MAX_STRING || name.contains('\0') {
            return Err(NbdError::BadName { name: name.chars().take(80).collect() });
        }
        let mut end = description.len().min(MAX_STRING);
        while !description.is_char_boundary(end) {
            end -= 1;
        }
        description.truncate(end);
        Ok(Export { name, description, device, read_only: false })
    }

    /// The same export, refusing writes.
    pub fn read_only(self) -> Self {
        Export { read_only: true, ..self }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The line for people.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether a client that asks for `name` means this export.
    pub(super) fn answers_to(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The transmission flags for a client that did or did not ask for structured replies.
    ///
    /// Several connections are always allowed: they share one device, so a flush on one covers
    /// finished writes on all. Zeroing is always fast in the protocol's sense, which compares it
    /// with a write of as many bytes: it does the same to the device and carries no data.
    pub(super) fn flags(&self, structured: bool) -> u16 {
        let mut flags = can::HAS_FLAGS | can::SEND_FLUSH | can::SEND_FUA | can::MULTI_CONN;
        if self.read_only {
            flags |= can::READ_ONLY;
        } else {
            flags |= can::SEND_TRIM | can::SEND_WRITE_ZEROES | can::SEND_FAST_ZERO;
        }
        if structured {
            flags |= can::SEND_DF;
        }
        flags
    }
}
