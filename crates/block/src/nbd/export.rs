//! [`Export`], a device under a name.

use super::NbdError;
use super::proto::{MAX_DATA, can};
use super::request_memory::SharedRequestMemory;
use crate::BlockDevice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The block sizes that clients see: smallest and preferred request, and most data in a request, bytes.
pub const BLOCK_SIZES: [u32; 3] = [1, 4096, MAX_DATA];
/// The protocol's limit for an export name or description, bytes.
const MAX_STRING: usize = 4096;

/// A device with the name by which clients request it, and a description for people.
///
/// A server has one export, so the empty name, the protocol's default export, means this one too.
#[derive(Clone)]
pub struct Export {
    name: String,
    description: String,
    device: Arc<dyn BlockDevice>,
    read_only: bool,
    /// The memory that the connections to this export, and to its clones, share.
    shared_memory: Arc<SharedRequestMemory>,
    /// Set when the server of this export stops: then no connection begins another request.
    stopping: Arc<AtomicBool>,
}

impl Export {
    /// Makes a writable export of `device`. A description longer than 4096 bytes is truncated.
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
        Ok(Export {
            name,
            description,
            device,
            read_only: false,
            shared_memory: Arc::default(),
            stopping: Arc::default(),
        })
    }

    /// Makes the export read-only: it refuses writes.
    pub fn read_only(self) -> Self {
        Export { read_only: true, ..self }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The description for people.
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

    /// The memory for waiting requests that all connections share.
    pub(super) fn shared_memory(&self) -> &Arc<SharedRequestMemory> {
        &self.shared_memory
    }

    /// The export for one server, which stops it alone.
    pub(super) fn of_server(self) -> Self {
        Export { stopping: Arc::default(), ..self }
    }

    /// Keeps the connections from beginning further requests, those that they have received included.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether [`Export::stop`] was called.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Whether `name` means this export.
    pub(super) fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The transmission flags for a client that has or has not negotiated structured replies.
    ///
    /// MULTI_CONN is always set: all connections share one device, so a flush on one covers finished writes on all.
    /// SEND_FAST_ZERO is set because zeroing is never slower than a write of as many bytes, which is the protocol's
    /// definition of fast.
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
