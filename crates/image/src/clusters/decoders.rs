//! A pool of decompressor states, which are reused from cluster to cluster.
//!
//! A new state is charged to the grant of the cluster that needs it, and stays charged while it is idle. Idle states
//! are freed when the budget needs the memory. One mutex guards the list of idle states; a state in use belongs to one
//! thread.

use crate::budget::{Charge, Grant};
use crate::read::{Algorithm, Cluster};
use crate::{ImageError, Result};
use pagefold_codec::cluster::{Decoder, Format};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The greatest distance of a match that the format can express. The image may declare a smaller window, but liblz4
/// does not check it, and a cluster must not decode in one way and fail in another.
const LZ4_WINDOW_BYTES: u32 = 65_535;
/// Idle states in the pool at most; further ones are freed after use.
const MAX_IDLE: usize = 8;

/// Parameters of the image's compression, from its superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Formats {
    pub(crate) lzma_dict_bytes: u32,
    pub(crate) zstd_window_bytes: u32,
}

impl Formats {
    pub(crate) fn of(&self, algorithm: Algorithm) -> Format {
        match algorithm {
            Algorithm::Lz4 => Format::Lz4 { window_bytes: LZ4_WINDOW_BYTES },
            Algorithm::MicroLzma => Format::MicroLzma { dict_bytes: self.lzma_dict_bytes },
            Algorithm::Deflate => Format::Deflate,
            Algorithm::Zstd => Format::Zstd { max_window_bytes: self.zstd_window_bytes },
        }
    }
}

/// Bytes that a state of this format takes at most, in whichever way it decodes.
pub(crate) fn state_bytes(format: Format) -> u64 {
    Decoder::contiguous_bytes(format).max(Decoder::windowed_bytes(format)) as u64
}

/// The idle states of one image.
#[derive(Default)]
pub(crate) struct DecoderPool {
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    format: Format,
    decoder: Decoder,
    #[expect(dead_code, reason = "held for its drop")]
    charge: Charge,
}

impl DecoderPool {
    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `decode` with an idle state of `format`, or with a new one that is charged to `grant`, whose size includes
    /// [`state_bytes`] for it. `cluster` is named in errors.
    pub(crate) fn with<T>(
        &self,
        format: Format,
        cluster: &Cluster,
        grant: &mut Grant,
        decode: impl FnOnce(&mut Decoder) -> T,
    ) -> Result<T> {
        let mut idle = self.idle();
        let found = idle.iter().position(|i| i.format == format).map(|at| idle.swap_remove(at));
        drop(idle);
        let mut state = match found {
            Some(found) => found,
            None => new_state(format, cluster, grant)?,
        };
        let decoded = decode(&mut state.decoder);
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE {
            idle.push(state);
        }
        Ok(decoded)
    }

    /// Frees all idle states, and returns their bytes.
    pub(crate) fn free_idle(&self) -> u64 {
        let idle = std::mem::take(&mut *self.idle());
        idle.iter().map(|i| state_bytes(i.format)).sum()
    }
}

fn new_state(format: Format, cluster: &Cluster, grant: &mut Grant) -> Result<Idle> {
    let (needed_bytes, limit_bytes) = (state_bytes(format), grant.left_bytes());
    let charge =
        grant.charge(needed_bytes).ok_or(ImageError::TooLittleMemory { needed_bytes, limit_bytes })?;
    let decoder = Decoder::new(format).map_err(|e| ImageError::corrupt(cluster.at, e.to_string()))?;
    Ok(Idle { format, decoder, charge })
}
