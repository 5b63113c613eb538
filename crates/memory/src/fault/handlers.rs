//! The threads that serve faults of a region, those of system calls too.
//!
//! Each thread polls the userfaultfd, reads a few messages at once, and serves them. The kernel blocks the thread that
//! made a fault until its page is put into the range, or until it is woken to try again.

use crate::pager::{OnLoss, Pager};
use pagefold_page::PAGE_SIZE;
use pagefold_sys::signal;
use pagefold_sys::uffd::Fault;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Messages read at once.
const FAULTS_MAX: usize = 16;

/// The threads. Dropping this ends them and waits for them.
pub(crate) struct Handlers {
    stop: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Handlers {
    /// Starts `count` threads.
    pub(crate) fn start(pager: &Arc<Pager>, count: usize) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let mut handlers = Handlers { stop, threads: Vec::new() };
        for _ in 0..count.max(1) {
            let (pager, stop) = (pager.clone(), handlers.stop.clone());
            let thread = std::thread::Builder::new().name("pagefold-fault".into());
            handlers.threads.push(signal::spawn_masked(thread, move || run(&pager, &stop))?);
        }
        Ok(handlers)
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        // The counter cannot be full: this is the only write to it.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            // A panic in it has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

fn run(pager: &Pager, stop: &OwnedFd) {
    let mut faults = [Fault::default(); FAULTS_MAX];
    loop {
        let descriptor = pager.uffd.as_fd();
        let mut polled = [PollFd::new(&descriptor, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if poll(&mut polled, None).is_err() {
            continue;
        }
        if !polled[1].revents().is_empty() {
            return;
        }
        // Another thread may have read the messages: then there are none.
        let count = pager.uffd.read_faults(&mut faults).unwrap_or(0);
        for fault in &faults[..count] {
            serve(pager, fault);
        }
    }
}

fn serve(pager: &Pager, fault: &Fault) {
    match pager.page_at(fault.address) {
        Some(page) => {
            // The kernel blocks the thread that made the access: only poison makes the access fail.
            pager.serve(page, fault.is_write, OnLoss::Poison);
        }
        None => {
            pager.serve_staging(fault.address);
            let _ = pager.uffd.wake(fault.address / PAGE_SIZE * PAGE_SIZE, PAGE_SIZE);
        }
    }
}
