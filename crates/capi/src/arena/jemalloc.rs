//! Calls of jemalloc's control interface, whose names are paths.

use crate::error::{Code, Error};
use pagefold_page::PAGE_SIZE;
use std::ffi::{CString, c_uint, c_void};
use std::mem::size_of;
use tikv_jemalloc_sys::{extent_hooks_t, mallctl};

/// jemalloc's `arena_config_t`.
#[repr(C)]
struct ArenaConfig {
    hooks: *mut extent_hooks_t,
    metadata_use_hooks: bool,
}

/// Makes an arena of jemalloc's that takes the memory of its blocks from hooks, and that of its metadata from the
/// system. Returns its number.
///
/// So jemalloc touches no page of a region by itself, except to zero one for a caller. Freeing a block of a compressed
/// page does not bring the page back.
///
/// # Safety
/// The hooks keep jemalloc's rules, and live until the arena is destroyed.
pub(crate) unsafe fn create_arena(hooks: *mut extent_hooks_t) -> Result<u32, Error> {
    let mut config = ArenaConfig { hooks, metadata_use_hooks: false };
    // SAFETY: the call reads a structure of this type and writes an integer of this one; the caller keeps the rest.
    unsafe { control::<c_uint, ArenaConfig>("experimental.arenas_create_ext", true, Some(&mut config)) }
}

/// Frees all blocks of an arena, and returns its memory to the hooks.
///
/// # Safety
/// Nobody uses the arena, nor blocks of it, nor a cache that has some.
pub(crate) unsafe fn destroy_arena(arena: u32) -> Result<(), Error> {
    // SAFETY: the call takes and returns nothing; the caller keeps the rest.
    unsafe { control::<c_uint, c_uint>(&format!("arena.{arena}.destroy"), false, None) }.map(drop)
}

/// Sets for how long an arena keeps the memory of freed blocks, and that it takes no more memory than a block needs.
///
/// By default jemalloc takes larger and larger pieces, and never returns what it has not used of them. Such remains lie
/// between the free runs, where no large block would fit in.
pub(crate) fn set_up_arena(arena: u32, keep_ms: isize) -> Result<(), Error> {
    let set = |name: &str, mut value: isize| {
        // SAFETY: the calls read a signed size, or a size that is positive.
        unsafe { control::<c_uint, isize>(&format!("arena.{arena}.{name}"), false, Some(&mut value)) }
    };
    set("dirty_decay_ms", keep_ms)?;
    set("muzzy_decay_ms", 0)?;
    set("retain_grow_limit", PAGE_SIZE as isize)?;
    Ok(())
}

/// Returns the memory of all freed blocks of an arena to the hooks.
pub(crate) fn purge(arena: u32) -> Result<(), Error> {
    // SAFETY: the call takes and returns nothing.
    unsafe { control::<c_uint, c_uint>(&format!("arena.{arena}.purge"), false, None) }.map(drop)
}

/// Makes a cache of blocks, and returns its number.
pub(crate) fn create_cache() -> Result<u32, Error> {
    // SAFETY: the call writes an integer of this type.
    unsafe { control::<c_uint, c_uint>("tcache.create", true, None) }
}

/// Returns the blocks of a cache to their arena.
pub(crate) fn flush_cache(mut cache: u32) -> Result<(), Error> {
    // SAFETY: the call reads an integer of this type.
    unsafe { control::<c_uint, c_uint>("tcache.flush", false, Some(&mut cache)) }.map(drop)
}

/// Returns the blocks of a cache to their arena, and makes its number free.
pub(crate) fn destroy_cache(mut cache: u32) -> Result<(), Error> {
    // SAFETY: the call reads an integer of this type.
    unsafe { control::<c_uint, c_uint>("tcache.destroy", false, Some(&mut cache)) }.map(drop)
}

/// Makes a call of the control interface. Returns what it wrote if it `writes` something, and otherwise 0.
///
/// # Safety
/// The named call writes an `Out` if it writes anything, and reads an `In` if it gets one.
unsafe fn control<Out: Default, In>(name: &str, writes: bool, input: Option<&mut In>) -> Result<Out, Error> {
    let path = CString::new(name).map_err(Error::invalid)?;
    let (mut out, mut out_len) = (Out::default(), size_of::<Out>());
    let (out_at, out_len_at): (*mut c_void, *mut usize) = match writes {
        true => ((&raw mut out).cast(), &raw mut out_len),
        false => (std::ptr::null_mut(), std::ptr::null_mut()),
    };
    let (in_at, in_len): (*mut c_void, usize) = match input {
        Some(input) => (std::ptr::from_mut(input).cast(), size_of::<In>()),
        None => (std::ptr::null_mut(), 0),
    };
    // SAFETY: the places have the sizes that are passed, and live during the call; the caller guarantees the types.
    match unsafe { mallctl(path.as_ptr(), out_at, out_len_at, in_at, in_len) } {
        0 => Ok(out),
        errno => Err(Error::new(
            if errno == libc::ENOMEM || errno == libc::EAGAIN { Code::NoMemory } else { Code::System },
            format_args!("the allocator: {name}: {}", std::io::Error::from_raw_os_error(errno)),
        )),
    }
}
