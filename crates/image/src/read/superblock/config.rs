//! The compression algorithms of an image, and their parameters.

use crate::format::config::{self, Algorithm, RawDeflateConfig, RawLz4Config, RawLzmaConfig, RawZstdConfig};
use crate::format::features::incompat;
use crate::format::superblock::{self as disk, RawSuperblock};
use crate::read::Bytes;
use crate::read::bytes::array_at;
use crate::read::extent::MAX_CLUSTER_BYTES;
use crate::{Address, ImageError, Result};

/// The algorithms of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Algorithms {
    /// Bit `n` is set for the algorithm of number `n`.
    bits: u16,
    /// Whether the superblock says that there are compressed files: by algorithms, or by the window of LZ4.
    pub is_declared: bool,
    /// Window of LZ4, bytes; never 0.
    pub lz4_window_bytes: u32,
    /// Blocks of the largest cluster, from the record of LZ4; never 0, and at most [`MAX_CLUSTER_BYTES`] long. Images
    /// that do not use LZ4 have no such record, and get that limit.
    pub max_pcluster_blocks: u16,
    /// Length of LZMA's dictionary, bytes.
    pub lzma_dict_bytes: Option<u32>,
    /// log2 of deflate's window.
    pub deflate_window_bits: Option<u8>,
    /// log2 of Zstandard's window.
    pub zstd_window_log: Option<u8>,
}

impl Algorithms {
    /// Reads the superblock's fields, and the records `offset` bytes after its beginning. Returns also the offset of
    /// the end of the records in the image.
    pub(super) fn read(bytes: &dyn Bytes, raw: &RawSuperblock, offset: u64) -> Result<(Self, u64)> {
        let mut found = Algorithms {
            bits: 1 << Algorithm::Lz4 as u8,
            is_declared: raw.u1.get() != 0,
            lz4_window_bytes: config::LZ4_WINDOW_BYTES_DEFAULT,
            max_pcluster_blocks: 1,
            lzma_dict_bytes: None,
            deflate_window_bits: None,
            zstd_window_log: None,
        };
        if raw.feature_incompat.get() & incompat::COMPR_CFGS == 0 {
            found.set_lz4_window(raw.u1.get());
            return Ok((found, disk::OFFSET + offset));
        }
        found.bits = raw.u1.get();
        found.max_pcluster_blocks = (MAX_CLUSTER_BYTES >> raw.blkszbits) as u16;
        let mut at = Address::image(disk::OFFSET + offset);
        for number in 0..16u8 {
            if found.bits & 1 << number == 0 {
                continue;
            }
            let Some(algorithm) = Algorithm::from_number(number) else {
                return Err(ImageError::Unsupported { features: format!("compression algorithm {number}") });
            };
            at.offset = at.offset.next_multiple_of(config::RECORD_ALIGN);
            let len = u16::from_le_bytes(array_at(bytes, at)?);
            at.offset += 2;
            found.read_record(bytes, at, len, algorithm, raw.blkszbits)?;
            at.offset += u64::from(len);
        }
        Ok((found, at.offset))
    }

    /// Whether the image may hold clusters of `algorithm`.
    pub fn contains(&self, algorithm: Algorithm) -> bool {
        self.bits & 1 << algorithm as u8 != 0
    }

    /// Returns a set of bits: bit `n` for the algorithm of number `n`.
    pub fn bits(&self) -> u16 {
        self.bits
    }

    /// Iterates over the algorithms, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = Algorithm> {
        Algorithm::ALL.into_iter().filter(|algorithm| self.contains(*algorithm))
    }

    fn set_lz4_window(&mut self, max_distance: u16) {
        if max_distance != 0 {
            self.lz4_window_bytes = u32::from(max_distance);
        }
    }

    /// Reads one record of `len` bytes at `at`. Bytes after the known fields are ignored.
    fn read_record(
        &mut self,
        bytes: &dyn Bytes,
        at: Address,
        len: u16,
        algorithm: Algorithm,
        block_bits: u8,
    ) -> Result<()> {
        match algorithm {
            Algorithm::Lz4 => {
                let raw = RawLz4Config::parse(&record(bytes, at, len)?);
                self.set_lz4_window(raw.max_distance.get());
                self.max_pcluster_blocks = raw.max_pclusterblks.get().max(1);
                if u64::from(self.max_pcluster_blocks) << block_bits > u64::from(MAX_CLUSTER_BYTES) {
                    return Err(ImageError::corrupt(at, "clusters of more than 1 MiB"));
                }
            }
            Algorithm::MicroLzma => {
                let raw = RawLzmaConfig::parse(&record(bytes, at, len)?);
                let dict = raw.dict_size.get();
                check_format(at, raw.format.get(), "LZMA")?;
                if !config::LZMA_DICT_BYTES.contains(&dict) {
                    return Err(ImageError::corrupt(at, format!("an LZMA dictionary of {dict} bytes")));
                }
                self.lzma_dict_bytes = Some(dict);
            }
            Algorithm::Deflate => {
                let bits = RawDeflateConfig::parse(&record(bytes, at, len)?).windowbits;
                if bits > config::DEFLATE_WINDOW_BITS_MAX {
                    return Err(ImageError::corrupt(at, format!("a deflate window of 2^{bits} bytes")));
                }
                self.deflate_window_bits = Some(bits);
            }
            Algorithm::Zstd => {
                let raw = RawZstdConfig::parse(&record(bytes, at, len)?);
                check_format(at, u16::from(raw.format), "Zstandard")?;
                if raw.windowlog > config::ZSTD_WINDOW_LOG_MAX {
                    let log = u16::from(raw.windowlog) + u16::from(config::ZSTD_WINDOW_LOG_BASE);
                    return Err(ImageError::corrupt(at, format!("a Zstandard window of 2^{log} bytes")));
                }
                self.zstd_window_log = Some(raw.windowlog + config::ZSTD_WINDOW_LOG_BASE);
            }
        }
        Ok(())
    }
}

/// Reads the first `N` bytes of a record of `len` bytes.
fn record<const N: usize>(bytes: &dyn Bytes, at: Address, len: u16) -> Result<[u8; N]> {
    if usize::from(len) < N {
        let what = format!("a configuration record of {len} bytes instead of {N}");
        return Err(ImageError::corrupt(at, what));
    }
    array_at(bytes, at)
}

fn check_format(at: Address, format: u16, name: &str) -> Result<()> {
    match format {
        0 => Ok(()),
        _ => {
            let features = format!("format {format} of {name} (record at {at})");
            Err(ImageError::Unsupported { features })
        }
    }
}
