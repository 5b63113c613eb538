//! LZO as back ends of the table: `lzo` and `lzo-rle`.

use super::{Variant, Workspace, compress, decompress};
use crate::backend::{Algorithm, Backend, Stream};
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
    open: |_| Ok(Box::new(Lzo { name: LZO, variant: Variant::Lzo })),
};

pub(crate) const LZO_RLE_BACKEND: Backend = Backend {
    name: LZO_RLE,
    summary: "lzo with runs of zeros as instructions; zram's default in many kernels",
    levels: None,
    dictionary: false,
    window_bits: false,
    in_zram: true,
    open: |_| Ok(Box::new(Lzo { name: LZO_RLE, variant: Variant::LzoRle })),
};

#[derive(Clone, Copy)]
struct Lzo {
    name: &'static str,
    variant: Variant,
}

impl Algorithm for Lzo {
    fn stream(&self) -> Result<Box<dyn Stream>, CodecError> {
        Ok(Box::new(LzoStream { lzo: *self, work: Workspace::new() }))
    }
}

struct LzoStream {
    lzo: Lzo,
    work: Workspace,
}

impl Stream for LzoStream {
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let (codec, dst_len_bytes) = (self.lzo.name, dst.len());
        compress(self.lzo.variant, &mut self.work, src, dst)
            .map_err(|_| CodecError::Compress { codec, dst_len_bytes })
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let (codec, src_len_bytes) = (self.lzo.name, src.len());
        decompress(src, dst).map_err(|_| CodecError::Corrupt { codec, src_len_bytes })
    }
}
