//! The server's side of what a broker does for a disk: its loop device, files opened anew, the state file.

use super::wire::{AttachRequest, Attached, LoopStatus, Operation};
use super::{Broker, ByBroker};
use pagefold_block::loop_export::{ExportError, LoopBroker, LoopRequest, OwnedLoop, Users};
use pagefold_control::error::Result;
use pagefold_sys::blockuse::BlockUse;
use pagefold_sys::loopdev::{Detach, LoopIdentity};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Broker {
    /// Opens a file anew, which is open for reading and writing. `None` if that is impossible.
    pub fn reopen(&self, file: &File) -> Option<File> {
        self.request(Operation::Reopen, Some(file.as_fd()), &[]).ok()?.fd.map(File::from)
    }

    /// Records the size of the disk in the state file.
    pub fn record_size(&self, len_bytes: u64) -> Result<()> {
        Ok(self.request(Operation::RecordSize, None, &len_bytes.to_le_bytes()).map(drop)?)
    }

    /// Records that the device was closed in an orderly way.
    pub fn mark_ended(&self) -> Result<()> {
        Ok(self.request(Operation::MarkEnded, None, &[]).map(drop)?)
    }

    /// The loop device of a former server, which the state file has named to this one before it was confined.
    pub fn former_loop(self: &Arc<Self>, path: PathBuf, identity: LoopIdentity) -> Box<dyn OwnedLoop> {
        Box::new(BrokersLoop { broker: self.clone(), path, identity })
    }

    fn ask<T: DeserializeOwned>(&self, operation: Operation, payload: &[u8]) -> Result<T, ExportError> {
        let answer = self.request(operation, None, payload)?;
        serde_json::from_slice(&answer.payload)
            .map_err(|e| ExportError::Session(format!("the broker answered nonsense: {e}")))
    }

    fn tell(&self, operation: Operation, number: u64) -> Result<(), ExportError> {
        Ok(self.request(operation, None, &number.to_le_bytes()).map(drop)?)
    }
}

impl LoopBroker for ByBroker {
    fn attach(&self, request: &LoopRequest) -> Result<Box<dyn OwnedLoop>, ExportError> {
        // The broker knows the size of sectors itself.
        let LoopRequest { read_ahead_kib, io_kib, .. } = *request;
        let payload = serde_json::to_vec(&AttachRequest { read_ahead_kib, io_kib });
        let payload = payload.map_err(|e| ExportError::Session(e.to_string()))?;
        let Attached { path, identity: (lo_device, lo_inode) } = self.0.ask(Operation::Attach, &payload)?;
        Ok(self.0.former_loop(path, LoopIdentity { lo_device, lo_inode }))
    }
}

/// A loop device that a broker has attached, and detaches.
struct BrokersLoop {
    broker: Arc<Broker>,
    path: PathBuf,
    identity: LoopIdentity,
}

impl BrokersLoop {
    fn status(&self) -> Result<LoopStatus, ExportError> {
        self.broker.ask(Operation::LoopStatus, &[])
    }
}

impl OwnedLoop for BrokersLoop {
    fn path(&self) -> &Path {
        &self.path
    }

    fn identity(&self) -> LoopIdentity {
        self.identity
    }

    fn is_attached(&self) -> bool {
        self.status().map_or(true, |status| status.is_attached)
    }

    fn len_bytes(&self) -> Result<u64, ExportError> {
        let len_bytes = self.status()?.len_bytes;
        len_bytes.ok_or_else(|| ExportError::Session("the size of the loop device cannot be read".into()))
    }

    fn claims(&self) -> Vec<BlockUse> {
        let status = self.status();
        status.map_or_else(|_| Vec::new(), |status| status.claims.into_iter().map(Into::into).collect())
    }

    fn begin_resize(&self, users: Users) -> Result<(), ExportError> {
        self.broker.tell(Operation::BeginResize, u64::from(users == Users::Refuse))
    }

    fn finish_resize(&self, len_bytes: u64) -> Result<(), ExportError> {
        self.broker.tell(Operation::FinishResize, len_bytes)
    }

    fn detach(&self, how: Detach) -> Result<(), ExportError> {
        self.broker.tell(Operation::Detach, u64::from(how == Detach::IfUnclaimed))
    }
}
