//! The interface through which a load reads and writes: a store or a region in this process, a block device, an NBD
//! export.

pub mod device;
pub mod nbd;
pub mod region;
pub mod store;

/// A range of bytes that the threads of a load share.
pub trait Target: Sync {
    /// The size in bytes.
    fn len_bytes(&self) -> u64;

    /// Requests begin and end at multiples of this number of bytes.
    fn align(&self) -> u64;

    /// Opens a connection for one thread.
    fn connect(&self) -> Result<Box<dyn Connection + '_>, String>;
}

/// One thread's connection to a target.
pub trait Connection {
    /// Fills `buf` from byte `offset` on.
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), RequestError>;

    /// Writes `data`.
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), RequestError>;

    /// Discards the whole pages in a range; partial pages at its ends do not change.
    fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), RequestError>;

    /// Writes zeroes to a range.
    fn write_zeroes(&mut self, offset: u64, len_bytes: u64) -> Result<(), RequestError>;
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestError {
    /// The target reports that there is no room. The model decides whether that is justified.
    NoRoom(String),
    /// A medium below failed on purpose. The stored pages have not changed.
    Injected(String),
    /// Any other error, which is always a fault.
    Other(String),
}
