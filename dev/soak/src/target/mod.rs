//! The interface through which a load reads and writes: a store or a region in this process, a block device, an NBD
//! export. Each thread of a load has a connection.

pub mod device;
pub mod nbd;
pub mod region;
pub mod store;

/// Opens a connection for one thread of a load.
pub type Connect<'a> = dyn Fn() -> Result<Box<dyn Connection + 'a>, String> + Sync + 'a;

/// One thread's connection to a range of bytes that the threads of a load share.
pub trait Connection {
    /// Requests begin and end at multiples of this number of bytes.
    fn align(&self) -> u64 {
        1
    }

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
    /// The target reports that there is no space. The model decides whether that is justified.
    NoRoom(String),
    /// A medium below failed on purpose. The stored pages have not changed.
    Injected(String),
    /// Any other error, which is always a fault.
    Other(String),
}

/// An error that is always a fault.
fn other(error: impl std::fmt::Display) -> RequestError {
    RequestError::Other(error.to_string())
}
