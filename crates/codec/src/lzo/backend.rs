//! LZO as back ends of the table: `lzo` and `lzo-rle`.

use super::{Variant, Workspace, compress, decompress};
use crate::backend::{Backend, Stream};
use crate::error::CodecError;

const LZO: &str = "lzo";
const LZO_RLE: &str = "lzo-rle";

pub(crate) const LZO_BACKEND: Backend = Backend {
    name: LZO,
    summary: "a little denser than lz4, slower to read",
    levels: None,
    dictionary: false,
    window_bits: false,
    in_zram: true,
    open: |_| Ok(Box::new(|| Ok(LzoStream::boxed(LZO, Variant::Lzo)))),
};

pub(crate) const LZO_RLE_BACKEND: Backend = Backend {
    name: LZO_RLE,
    summary: "lzo with runs of zeros as instructions; zram's default in many kernels",
    levels: None,
    dictionary: false,
    window_bits: false,
    in_zram: true,
    open: |_| Ok(Box::new(|| Ok(LzoStream::boxed(LZO_RLE, Variant::LzoRle)))),
};

struct LzoStream {
    codec: &'static str,
    variant: Variant,
    work: Workspace,
}

impl LzoStream {
    fn boxed(codec: &'static str, variant: Variant) -> Box<dyn Stream> {
        Box::new(LzoStream { codec, variant, work: Workspace::new() })
    }
}

impl Stream for LzoStream {
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let (codec, dst_len_bytes) = (self.codec, dst.len());
        compress(self.variant, &mut self.work, src, dst)
            .map_err(|_| CodecError::Compress { codec, dst_len_bytes })
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let (codec, src_len_bytes) = (self.codec, src.len());
        decompress(src, dst).map_err(|_| CodecError::Corrupt { codec, src_len_bytes })
    }
}
