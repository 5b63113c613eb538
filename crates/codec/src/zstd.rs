//! Zstandard by libzstd (vendored by `zstd-sys`, reached through `zstd-safe`).
//!
//! Frames are written without magic number, content size, checksum and dictionary id: they would take 7 bytes or more
//! of every page, the store knows the codec, the size and the dictionary, and a page in memory needs no checksum.
//! Format: RFC 8878, "magicless".

use crate::backend::{Algorithm, Backend, Levels, Params, Stream};
use crate::error::CodecError;
use std::sync::Arc;
use zstd_safe::{CCtx, CDict, CParameter, DCtx, DDict, DParameter, FrameFormat};

const NAME: &str = "zstd";

pub(crate) const BACKEND: Backend = Backend {
    name: NAME,
    summary: "dense; about twice the cost of lz4 at level 1",
    // Those of libzstd. A negative level is the step by which the encoder skips input, so those below -50 compress
    // hardly anything; the kernel accepts them. Level 0 is the default.
    levels: Some(Levels { min: -131_072, max: 22, default: 3 }),
    dictionary: true,
    window_bits: false,
    in_zram: true,
    open,
};

struct Dictionary {
    encode: CDict<'static>,
    decode: DDict<'static>,
}

fn open(params: &Params<'_>) -> Result<Algorithm, CodecError> {
    let level = params.level;
    let prepare = |bytes: &[u8]| {
        let encode = CDict::try_create(bytes, level)?;
        Some(Arc::new(Dictionary { encode, decode: DDict::try_create(bytes)? }))
    };
    let prepare = |bytes: &[u8]| {
        prepare(bytes).ok_or(CodecError::BadDictionary { codec: NAME, len_bytes: bytes.len() })
    };
    let dictionary = params.dictionary.map(prepare).transpose()?;
    Ok(Box::new(move || Ok(Box::new(ZstdStream::new(level, dictionary.clone())?))))
}

/// Working state: both contexts. Their memory grows at first use and is kept.
struct ZstdStream {
    encoder: CCtx<'static>,
    decoder: DCtx<'static>,
    // Last, so that it is dropped after the contexts that point into it.
    _dictionary: Option<Arc<Dictionary>>,
}

impl ZstdStream {
    fn new(level: i32, dictionary: Option<Arc<Dictionary>>) -> Result<Self, CodecError> {
        let no_memory = || CodecError::NoMemory { codec: NAME };
        let mut encoder = CCtx::try_create().ok_or_else(no_memory)?;
        let mut decoder = DCtx::try_create().ok_or_else(no_memory)?;
        for parameter in [
            CParameter::CompressionLevel(level),
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            encoder.set_parameter(parameter).map_err(|_| no_memory())?;
        }
        decoder.set_parameter(DParameter::Format(FrameFormat::Magicless)).map_err(|_| no_memory())?;
        if let Some(dictionary) = &dictionary {
            // SAFETY: the reference is extended to 'static for the contexts that keep it. It stays valid
            // because the stream built below owns an Arc of the dictionary, never moves out of it, and
            // drops its contexts first (fields drop in order of declaration).
            let dictionary: &'static Dictionary = unsafe { &*Arc::as_ptr(dictionary) };
            encoder.ref_cdict(&dictionary.encode).map_err(|_| no_memory())?;
            decoder.ref_ddict(&dictionary.decode).map_err(|_| no_memory())?;
        }
        Ok(ZstdStream { encoder, decoder, _dictionary: dictionary })
    }
}

impl Stream for ZstdStream {
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let dst_len_bytes = dst.len();
        self.encoder.compress2(dst, src).map_err(|_| CodecError::Compress { codec: NAME, dst_len_bytes })
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let src_len_bytes = src.len();
        self.decoder.decompress(dst, src).map_err(|_| CodecError::Corrupt { codec: NAME, src_len_bytes })
    }
}
