//! 842 as a back end of the table.

use super::{Workspace, compress, decompress};
use crate::backend::{Backend, Stream};
use crate::error::CodecError;

const NAME: &str = "842";

pub(crate) const BACKEND: Backend = Backend {
    name: NAME,
    summary: "the format of POWER processors; slower and less dense than lz4",
    levels: None,
    dictionary: false,
    window_bits: false,
    in_zram: true,
    open: |_| Ok(Box::new(|| Ok(Box::new(C842Stream { work: Workspace::new() })))),
};

struct C842Stream {
    work: Workspace,
}

impl Stream for C842Stream {
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let dst_len_bytes = dst.len();
        compress(&mut self.work, src, dst).map_err(|_| CodecError::Compress { codec: NAME, dst_len_bytes })
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let src_len_bytes = src.len();
        decompress(src, dst).map_err(|_| CodecError::Corrupt { codec: NAME, src_len_bytes })
    }
}
