//! The settings of a region, in a struct that can grow.

use crate::budget::{self, pf_budget};
use crate::error::Error;
use crate::guard;
use pagefold_memory::{CodecSpec, RegionConfig, Service};
use std::ffi::{CStr, c_char, c_int};
use std::mem::{offset_of, size_of};

/// The header's `struct pf_region_config`. Later versions add fields at the end.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "documented in the header")]
pub struct pf_region_config {
    pub size_bytes: usize,
    pub len_bytes: u64,
    pub limit_bytes: u64,
    pub max_len_bytes: u64,
    pub max_pool_bytes: u64,
    pub codec: *const c_char,
    pub codec_level: i32,
    pub has_codec_level: u32,
    pub max_pool_percent: u32,
    pub accept_threshold_percent: u32,
    pub service: u32,
    pub same_filled: u32,
    pub neighbours: u32,
    pub fold_threads: u32,
    pub handler_threads: u32,
    pub no_system_calls: u32,
    pub budget: *const pf_budget,
}

/// The header's `PF_SERVICE_…`.
const SERVICE_FAULTING_THREAD: u32 = 0;
const SERVICE_HANDLER_THREADS: u32 = 1;

/// Least size of the struct: the fields that a region cannot do without.
const SIZE_MIN: usize = offset_of!(pf_region_config, max_len_bytes);
/// A larger size is an uninitialised field rather than a later version.
const SIZE_MAX: usize = 4096;

impl pf_region_config {
    fn defaults() -> Self {
        let defaults = RegionConfig::new(0, 0);
        pf_region_config {
            size_bytes: size_of::<Self>(),
            accept_threshold_percent: defaults.accept_threshold_percent.into(),
            service: SERVICE_FAULTING_THREAD,
            same_filled: defaults.same_filled.into(),
            neighbours: defaults.neighbours.into(),
            // SAFETY: all fields are integers and raw pointers, for which zeroes are valid: 0 and null.
            ..unsafe { std::mem::zeroed() }
        }
    }

    /// Reads the caller's struct, of whatever version. Fields that an older one lacks have their defaults.
    ///
    /// # Safety
    /// `config` is null, or the address of a `size_t` and of as many bytes as this says.
    unsafe fn read(config: *const Self) -> Result<Self, Error> {
        if config.is_null() {
            return Err(Error::invalid("the configuration is a null pointer"));
        }
        // SAFETY: the caller guarantees it for this first field.
        let size_bytes = unsafe { config.cast::<usize>().read_unaligned() };
        if !(SIZE_MIN..=SIZE_MAX).contains(&size_bytes) {
            return Err(Error::invalid(format_args!(
                "the configuration has {size_bytes} bytes: pf_region_config_init initialises it"
            )));
        }
        // SAFETY: the caller guarantees so many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(config.cast::<u8>(), size_bytes) };
        if bytes.iter().skip(size_of::<Self>()).any(|byte| *byte != 0) {
            return Err(Error::invalid("the configuration has settings that this version does not know"));
        }
        let mut read = Self::defaults();
        let known = size_bytes.min(size_of::<Self>());
        // SAFETY: both have so many bytes, and any bytes are valid integers and a valid raw pointer.
        unsafe { (&raw mut read).cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), known) };
        Ok(read)
    }
}

/// Returns the settings that a caller's struct describes.
///
/// # Safety
/// As for [`pf_region_config::read`]; `codec` is null or a string, and `budget` null or a handle.
pub(crate) unsafe fn resolve(config: *const pf_region_config) -> Result<RegionConfig, Error> {
    // SAFETY: the caller guarantees it.
    let given = unsafe { pf_region_config::read(config) }?;
    // SAFETY: the caller guarantees null or a handle.
    let mut resolved = match unsafe { budget::handle(given.budget) }? {
        None => RegionConfig::new(given.len_bytes, given.limit_bytes),
        Some(budget) => {
            let config = RegionConfig::in_budget(given.len_bytes, budget);
            let limit_bytes = if given.limit_bytes == 0 { config.limit_bytes } else { given.limit_bytes };
            RegionConfig { limit_bytes, ..config }
        }
    };
    resolved.max_len_bytes = (given.max_len_bytes != 0).then_some(given.max_len_bytes);
    resolved.max_pool_bytes = (given.max_pool_bytes != 0).then_some(given.max_pool_bytes);
    if given.max_pool_percent != 0 {
        resolved.max_pool_percent = percent("max_pool_percent", given.max_pool_percent)?;
    }
    resolved.accept_threshold_percent = percent("accept_threshold_percent", given.accept_threshold_percent)?;
    resolved.service = match given.service {
        SERVICE_FAULTING_THREAD => Service::FaultingThread,
        SERVICE_HANDLER_THREADS => Service::HandlerThreads,
        other => return Err(Error::invalid(format_args!("there is no service {other}"))),
    };
    resolved.system_calls = given.no_system_calls == 0;
    resolved.same_filled = given.same_filled != 0;
    resolved.neighbours = given.neighbours != 0;
    if given.fold_threads != 0 {
        resolved.fold_threads = threads("fold_threads", given.fold_threads)?;
    }
    if given.handler_threads != 0 {
        resolved.handler_threads = threads("handler_threads", given.handler_threads)?;
    }
    if !given.codec.is_null() {
        // SAFETY: the caller guarantees that it is a string.
        let name = unsafe { CStr::from_ptr(given.codec) };
        let name = name.to_str().map_err(|_| Error::invalid("the name of the codec is not UTF-8"))?;
        resolved.codec = CodecSpec::named(name);
    }
    resolved.codec.level = (given.has_codec_level != 0).then_some(given.codec_level);
    Ok(resolved)
}

/// Returns a percentage in the type of the settings.
pub(crate) fn percent(name: &str, given: u32) -> Result<u8, Error> {
    match u8::try_from(given) {
        Ok(percent @ 1..=100) => Ok(percent),
        _ => Err(Error::invalid(format_args!("{name} must be 1 to 100, not {given}"))),
    }
}

fn threads(name: &str, count: u32) -> Result<usize, Error> {
    match count {
        1..=256 => Ok(count as usize),
        _ => Err(Error::invalid(format_args!("{name} must be at most 256, not {count}"))),
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_config_init(config: *mut pf_region_config, size_bytes: usize) -> c_int {
    guard::call(|| {
        if config.is_null() || !(SIZE_MIN..=SIZE_MAX).contains(&size_bytes) {
            return Err(Error::invalid("pf_region_config_init takes a struct pf_region_config and its size"));
        }
        let defaults = pf_region_config { size_bytes, ..pf_region_config::defaults() };
        // SAFETY: the caller guarantees a struct of `size_bytes`. A larger one is of a later version, whose further
        // fields have zero for their default.
        unsafe { guard::fill(config, &defaults, size_bytes) };
        Ok(())
    })
}
