//! Codecs: the slow references of the crate `codec`, destinations that are guarded, and input in pieces.

#[path = "../../crates/codec/tests/support/c842_reference.rs"]
pub mod c842_reference;
#[path = "../../crates/codec/tests/support/cluster/lz4_slow.rs"]
pub mod lz4_slow;
#[path = "../../crates/codec/tests/support/lzo_reference.rs"]
pub mod lzo_reference;
#[path = "../../crates/codec/tests/support/numbers_slow.rs"]
pub mod numbers_slow;

use pagefold_codec::cluster::Input;
use std::fmt::Debug;

/// Runs what writes to a destination of this length, and nothing after it. Returns its result and the destination.
pub fn guarded<T>(len: usize, write: impl FnOnce(&mut [u8]) -> T) -> (T, Vec<u8>) {
    let mut room = vec![0x5a; len + 64];
    let result = write(&mut room[..len]);
    assert_eq!(room[len..], [0x5a; 64]);
    room.truncate(len);
    (result, room)
}

/// A compressor or decompressor: returns the number of bytes that it has written.
pub trait Coder<E>: FnMut(&[u8], &mut [u8]) -> Result<usize, E> {}

impl<E, F: FnMut(&[u8], &mut [u8]) -> Result<usize, E>> Coder<E> for F {}

/// A slow decoder of a stream to at most so many bytes.
pub type Reference<E> = fn(&[u8], usize) -> Result<Vec<u8>, E>;

/// Two decoders have the same result for any stream and any length of the destination, which the first two bytes choose.
pub fn decoders_agree<E: Debug + PartialEq>(input: &[u8], mut fast: impl Coder<E>, slow: Reference<E>) {
    let Some((room, stream)) = input.split_first_chunk::<2>() else { return };
    let room = usize::from(u16::from_le_bytes(*room)) % 9000;
    let (decoded, out) = guarded(room, |out| fast(stream, out));
    assert_eq!(decoded.map(|len| out[..len].to_vec()), slow(stream, room));
}

/// Data, compressed, fits the bound, and both decoders return the same data; a destination that is too short is this
/// error.
pub fn round_trip<E: Debug + PartialEq>(
    data: &[u8],
    bound: usize,
    mut compress: impl Coder<E>,
    mut decompress: impl Coder<E>,
    slow: Reference<E>,
    overrun: E,
) {
    let mut stream = vec![0; bound];
    let len = compress(data, &mut stream).expect("fits its bound");
    let mut out = vec![0; data.len()];
    assert_eq!(decompress(&stream[..len], &mut out), Ok(data.len()));
    assert_eq!(out, data);
    assert_eq!(slow(&stream[..len], data.len()).as_deref(), Ok(data));
    let mut exact = vec![0; len];
    assert_eq!(compress(data, &mut exact), Ok(len));
    assert_eq!(exact, stream[..len]);
    assert_eq!(compress(data, &mut exact[..len - 1]), Err(overrun));
}

/// Input in pieces. Returns an error instead of piece number `fail_at`.
pub struct Pieces<'a> {
    pub rest: &'a [u8],
    pub fail_at: usize,
}

impl<'a> Pieces<'a> {
    /// Input without an error.
    pub fn new(rest: &'a [u8]) -> Self {
        Pieces { rest, fail_at: usize::MAX }
    }
}

impl Input for Pieces<'_> {
    type Error = ();

    fn read(&mut self, buf: &mut [u8]) -> Result<usize, ()> {
        self.fail_at = self.fail_at.checked_sub(1).ok_or(())?;
        let (now, later) = self.rest.split_at(buf.len().min(self.rest.len()));
        buf[..now.len()].copy_from_slice(now);
        self.rest = later;
        Ok(now.len())
    }
}
