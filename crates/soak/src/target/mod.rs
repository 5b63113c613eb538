//! What a load writes to and reads from: a store or a region in this process, a block device, an NBD export.

pub mod device;
pub mod nbd;
pub mod region;
pub mod store;

/// Something with bytes, shared by the threads of a load.
pub trait Target: Sync {
    /// Its size, bytes.
    fn len_bytes(&self) -> u64;

    /// Requests begin and end at multiples of this.
    fn align(&self) -> u64;

    /// A connection for one thread.
    fn connect(&self) -> Result<Box<dyn Connection + '_>, String>;
}

/// One thread's way to a target.
pub trait Connection {
    /// Fills `buf` from byte `offset` on.
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Failure>;

    /// Writes `data`.
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Failure>;

    /// Forgets whole pages; parts of pages stay.
    fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), Failure>;

    /// Makes a range zero.
    fn write_zeroes(&mut self, offset: u64, len_bytes: u64) -> Result<(), Failure>;
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// There is no room, says the target; the model says whether that is so.
    NoRoom(String),
    /// A medium below failed, as it was told to. What is stored is as it was.
    Injected(String),
    /// Anything else, which is a fault whatever the limits are.
    Other(String),
}
