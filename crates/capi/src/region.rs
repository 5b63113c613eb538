//! The functions on regions and pins.

use crate::config::{percent, pf_region_config, resolve};
use crate::error::{Code, Error};
use crate::guard;
use crate::pressure::{self, Callback, Watcher, pf_pressure_fn};
use crate::shared::Shared;
use pagefold_memory::{Advice, OwnedPin, Region, RegionError};
use parking_lot::Mutex;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The handle of a region.
pub struct pf_region {
    pub(crate) shared: Arc<Shared>,
    /// The thread that calls back, if there is a callback.
    pub(crate) watcher: Mutex<Option<Watcher>>,
}

/// The handle of a pin.
pub struct pf_pin {
    pin: OwnedPin,
    shared: Arc<Shared>,
}

/// Returns what a handle stands for. Refuses null, and handles of the parent process.
///
/// # Safety
/// The handle is null, or one that nobody destroys during `'a`.
pub(crate) unsafe fn handle<'a>(region: *const pf_region) -> Result<&'a pf_region, Error> {
    // SAFETY: the caller guarantees it.
    let handle = unsafe { region.as_ref() }.ok_or_else(|| Error::invalid("the region is a null pointer"))?;
    handle.shared.check_process()?;
    Ok(handle)
}

/// Like [`handle`], for what it shares with others.
///
/// # Safety
/// As for [`handle`].
pub(crate) unsafe fn shared<'a>(region: *const pf_region) -> Result<&'a Arc<Shared>, Error> {
    // SAFETY: the caller guarantees it.
    unsafe { handle(region) }.map(|handle| &handle.shared)
}

pub(crate) fn open(region: Region) -> Result<pf_region, Error> {
    Ok(pf_region { shared: Arc::new(Shared::new(region)?), watcher: Mutex::new(None) })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_create(
    config: *const pf_region_config,
    region: *mut *mut pf_region,
) -> c_int {
    // SAFETY: the caller guarantees a configuration, and a place for the handle.
    guard::call(|| unsafe { guard::put(region, || open(Region::new(resolve(config)?)?)) })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_from_file(
    fd: c_int,
    config: *const pf_region_config,
    region: *mut *mut pf_region,
) -> c_int {
    let make = || {
        if fd < 0 {
            return Err(Error::invalid(format_args!("{fd} is no file descriptor")));
        }
        // SAFETY: the caller guarantees a configuration, and a descriptor that stays open during the call.
        let (config, fd) = unsafe { (resolve(config)?, BorrowedFd::borrow_raw(fd)) };
        let fd = fd.try_clone_to_owned();
        let fd = fd.map_err(|error| Error::new(Code::File, format_args!("the file descriptor: {error}")))?;
        let is_empty = config.len_bytes == 0;
        let region = Region::from_file(File::from(fd), config).map_err(|error| match error {
            RegionError::BadLength(0) if is_empty => {
                Error::invalid("the file is empty, and so is len_bytes: a region has at least one byte")
            }
            error => error.into(),
        });
        open(region?)
    };
    // SAFETY: the caller guarantees a place for the handle.
    guard::call(|| unsafe { guard::put(region, make) })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_destroy(region: *mut pf_region) -> c_int {
    guard::call(|| {
        if region.is_null() {
            return Ok(());
        }
        // SAFETY: the caller guarantees a handle that it no longer uses.
        let handle = unsafe { handle(region) }?;
        let (pins, arenas) = (handle.shared.pins.load(SeqCst), handle.shared.arenas.lock().len());
        if pins + arenas > 0 {
            let message = format_args!("the region has {pins} pins and {arenas} arenas").to_string();
            return Err(Error::new(Code::Busy, message));
        }
        pressure::replace(&handle.shared, &handle.watcher, None)?;
        // A call that ends a pin, or an arena, may not have returned yet.
        handle.shared.destroy();
        // SAFETY: `put` made it from a box, and the caller gives it up.
        drop(unsafe { Box::from_raw(region) });
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_address(region: *const pf_region) -> *mut c_void {
    // SAFETY: the caller guarantees a handle.
    let handle = unsafe { region.as_ref() };
    handle.map_or(std::ptr::null_mut(), |handle| std::ptr::with_exposed_provenance_mut(handle.shared.start))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_len_bytes(region: *const pf_region) -> usize {
    // SAFETY: the caller guarantees a handle.
    unsafe { region.as_ref() }.map_or(0, |handle| handle.shared.len_bytes.load(SeqCst))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_resize(region: *mut pf_region, len_bytes: u64) -> c_int {
    guard::call(|| {
        // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
        let shared = unsafe { shared(region) }?;
        let mut locked = shared.region_mut()?;
        let arenas = shared.arenas.lock();
        if arenas.iter().any(|part| part.end as u64 > len_bytes) {
            return Err(Error::new(Code::Busy, "an arena has bytes that would be cut off"));
        }
        let result = locked.resize(len_bytes);
        shared.len_bytes.store(locked.len_bytes(), SeqCst);
        Ok(result?)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_set_limit(region: *mut pf_region, limit_bytes: u64) -> c_int {
    // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
    guard::call(|| Ok(unsafe { shared(region) }?.region()?.set_limit(limit_bytes)?))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_set_pool_limit(
    region: *mut pf_region,
    max_pool_bytes: u64,
    accept_threshold_percent: u32,
) -> c_int {
    guard::call(|| {
        // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
        let shared = unsafe { shared(region) }?;
        Ok(shared
            .region()?
            .set_pool_limit(max_pool_bytes, percent("accept_threshold_percent", accept_threshold_percent)?)?)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_advise(
    region: *mut pf_region,
    start: *const c_void,
    len_bytes: usize,
    advice: u32,
) -> c_int {
    guard::call(|| {
        // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
        let shared = unsafe { shared(region) }?;
        let advice = match advice {
            0 => Advice::Normal,
            1 => Advice::Sequential,
            2 => Advice::Random,
            3 => Advice::WillNeed,
            other => return Err(Error::invalid(format_args!("there is no advice {other}"))),
        };
        Ok(shared.region()?.advise(shared.locate(start.addr(), len_bytes)?, advice)?)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_on_pressure(
    region: *mut pf_region,
    function: pf_pressure_fn,
    arg: *mut c_void,
) -> c_int {
    guard::call(|| {
        // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
        let region = unsafe { handle(region) }?;
        let callback = function.map(|function| Callback { function, arg });
        pressure::replace(&region.shared, &region.watcher, callback)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_discard(
    region: *mut pf_region,
    start: *mut c_void,
    len_bytes: usize,
) -> c_int {
    guard::call(|| {
        // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
        let shared = unsafe { shared(region) }?;
        let range = shared.locate(start.addr(), len_bytes)?;
        // SAFETY: the caller guarantees that nobody uses the part. Rust has no references into a region of C.
        Ok(unsafe { shared.region()?.discard_shared(range) }?)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_pin(
    region: *mut pf_region,
    start: *const c_void,
    len_bytes: usize,
    pin: *mut *mut pf_pin,
) -> c_int {
    let make = || {
        // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
        let shared = unsafe { shared(region) }?;
        let owned = shared.region()?.pin_owned(shared.locate(start.addr(), len_bytes)?)?;
        shared.pins.fetch_add(1, SeqCst);
        Ok(pf_pin { pin: owned, shared: shared.clone() })
    };
    // SAFETY: the caller guarantees a place for the handle.
    guard::call(|| unsafe { guard::put(pin, make) })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_unpin(pin: *mut pf_pin) -> c_int {
    guard::call(|| {
        // SAFETY: the caller guarantees a handle that it no longer uses.
        let Some(borrowed) = (unsafe { pin.as_ref() }) else { return Ok(()) };
        borrowed.shared.check_process()?;
        // SAFETY: `put` made it from a box, and the caller gives it up.
        let pf_pin { pin: owned, shared } = *unsafe { Box::from_raw(pin) };
        drop(owned);
        shared.pins.fetch_sub(1, SeqCst);
        Ok(())
    })
}
