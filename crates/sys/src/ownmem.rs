//! Reading this process's memory without faulting.
//!
//! A plain access to memory whose faults are served (see [`uffd`](crate::uffd)) waits until somebody fills the page.
//! Some threads must not wait for that: those that the server itself waits for. Two ways of the kernel's answer with an
//! error instead. process_vm_readv(2) does where faults become SIGBUS, as all system calls do; it is the faster one. A
//! process's memory file does whatever the context was opened for: its reads never wait for a userfaultfd context.
//!
//! Reference: process_vm_readv(2), proc_pid_mem(5); in the kernel, `handle_userfault`, which refuses accesses that cannot
//! be tried again.

use crate::{Errno, SysError};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The memory of this process, read by address. Useless in a forked child: it may read the parent's.
#[derive(Debug)]
pub struct OwnMemory(Way);

#[derive(Debug)]
enum Way {
    Call,
    File(File),
}

impl OwnMemory {
    /// Makes a reader that never waits for a page. `is_sigbus` says that all memory that it reads and that is served is
    /// served by contexts whose faults become SIGBUS.
    ///
    /// Otherwise, or where process_vm_readv(2) is not allowed, it takes a mounted `/proc`, and a process that is dumpable or
    /// privileged.
    pub fn open(is_sigbus: bool) -> Result<Self, SysError> {
        let (probed, mut read) = ([7_u8; 8], [0; 8]);
        if is_sigbus && read_by_call(probed.as_ptr().addr(), &mut read).is_ok() && read == probed {
            return Ok(OwnMemory(Way::Call));
        }
        const PATH: &str = "/proc/self/mem";
        let file = File::open(PATH).map_err(|e| SysError::io(format!("opening {PATH}"), &e))?;
        Ok(OwnMemory(Way::File(file)))
    }

    /// Fills `to` with the bytes at an address. EFAULT if there is nothing mapped, or a page is missing whose faults are
    /// served.
    pub fn read(&self, address: usize, to: &mut [u8]) -> Result<(), Errno> {
        match &self.0 {
            Way::Call => read_by_call(address, to),
            // A read that ends early, or with EIO, ended at a page that is not there.
            Way::File(file) => file.read_exact_at(to, address as u64).map_err(|e| match e.raw_os_error() {
                None | Some(libc::EIO) => Errno(libc::EFAULT),
                Some(errno) => Errno(errno),
            }),
        }
    }
}

fn read_by_call(address: usize, to: &mut [u8]) -> Result<(), Errno> {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: to.len() };
    // SAFETY: writes to `to` only, within its length; the kernel checks the other address.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    match read {
        -1 => Err(Errno::last()),
        // It ended early at a page that is not there.
        read if (read as usize) < to.len() => Err(Errno(libc::EFAULT)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Reservation, page_size};
    use crate::uffd::{Open, Uffd, kernel_features};

    #[test]
    fn what_is_there_is_read_and_what_is_not_is_an_error() {
        for is_sigbus in [false, true] {
            let memory = OwnMemory::open(is_sigbus).unwrap();
            let bytes: Vec<u8> = (0..100).collect();
            let mut read = [0; 100];
            memory.read(bytes.as_ptr().addr(), &mut read).unwrap();
            assert_eq!(read[..], bytes);
            assert_eq!(memory.read(0, &mut read), Err(Errno(libc::EFAULT)));
        }
    }

    #[test]
    fn a_missing_page_is_an_error_though_nobody_fills_it() {
        for is_sigbus in [false, true] {
            let open = Open { sigbus: is_sigbus, async_wp: false, kernel_faults: !is_sigbus };
            let uffd = match kernel_features().and_then(|_| Uffd::open(&open)) {
                Ok(uffd) => uffd,
                Err(e) => {
                    pagefold_testkit::skipped!("a_missing_page_is_an_error_though_nobody_fills_it: {e}");
                    continue;
                }
            };
            let page = page_size();
            let range = Reservation::new(2 * page).unwrap();
            // SAFETY: the first byte of the range, which nobody serves yet.
            unsafe { range.base().as_ptr().write(7) };
            let start = range.base().as_ptr().addr();
            uffd.register(start, 2 * page, true, true).unwrap();
            let (memory, mut read) = (OwnMemory::open(is_sigbus).unwrap(), vec![0; page]);
            memory.read(start, &mut read).unwrap();
            assert_eq!(read[0], 7);
            assert_eq!(memory.read(start + page, &mut read), Err(Errno(libc::EFAULT)));
            assert_eq!(memory.read(start, &mut vec![0; 2 * page]), Err(Errno(libc::EFAULT)));
        }
    }
}
