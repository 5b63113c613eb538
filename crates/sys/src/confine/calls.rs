//! seccomp: the system calls of a confined process.
//!
//! Two filters, of which the kernel takes the stricter answer: calls that only an attacker makes kill the process, and calls
//! that are not in the list of allowed ones fail with ENOSYS, as on a kernel without them. So another C library, which tries a
//! newer call first, works. Calls that start processes, and threads with clone3(2), whose flags a filter cannot read, are
//! among the latter. A process that asks servers ([`Wall::asks_servers`]) has the first filter alone, which lets it have
//! connections: the libraries that look up names make calls that differ from system to system.
//!
//! Filters do not see requests to io_uring: without [`Wall::has_rings`] an instance cannot be made.

use super::{Creates, Wall, own_pid};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;

/// The numbers of system calls by their names.
macro_rules! numbers {
    ($($name:ident)*) => { [$(libc::$name),*] };
}

/// Calls that kill the process: the ways out of it.
const DEADLY: &[libc::c_long] = &numbers! {
    SYS_execve SYS_execveat SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_process_madvise SYS_kcmp
    SYS_pidfd_getfd SYS_pidfd_send_signal SYS_kill SYS_tkill
    SYS_mount SYS_umount2 SYS_move_mount SYS_fsopen SYS_fsmount SYS_fsconfig SYS_fspick SYS_open_tree SYS_mount_setattr
    SYS_pivot_root SYS_chroot SYS_setns SYS_unshare SYS_open_by_handle_at SYS_name_to_handle_at
    SYS_bpf SYS_perf_event_open SYS_userfaultfd SYS_init_module SYS_finit_module SYS_delete_module SYS_kexec_load
    SYS_reboot SYS_swapon SYS_swapoff SYS_acct SYS_quotactl SYS_syslog SYS_add_key SYS_request_key SYS_keyctl
    SYS_settimeofday SYS_clock_settime SYS_adjtimex SYS_clock_adjtime SYS_sethostname SYS_setdomainname SYS_vhangup
    SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_setfsuid SYS_setfsgid SYS_setgroups
    SYS_capset SYS_personality SYS_fanotify_init
};

/// Calls for connections: deadly too, but for a process that asks servers.
const CONNECTING: &[libc::c_long] = &numbers! { SYS_socket SYS_connect SYS_bind };

/// Calls that create files and set their metadata, beside those whose mode counts: of processes that do so.
const CREATING: &[libc::c_long] = &numbers! {
    SYS_mkdirat SYS_symlinkat SYS_linkat SYS_unlinkat SYS_fchown SYS_fchownat SYS_utimensat SYS_fsetxattr SYS_setxattr
};

/// Calls that give files a mode, and the argument that has it.
#[cfg(target_arch = "x86_64")]
const MODES: &[(libc::c_long, u8)] =
    &[(libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2), (libc::SYS_openat, 3), (libc::SYS_open, 2)];
#[cfg(not(target_arch = "x86_64"))]
const MODES: &[(libc::c_long, u8)] = &[(libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2), (libc::SYS_openat, 3)];

/// The bits of modes by which others act as the owner or the group of a file.
const SET_ID: u64 = 0o6000;

/// The flags of clone(2) for namespaces, which a process with CAP_SYS_ADMIN could make for a thread.
const NAMESPACES: u64 = 0x7E02_0000;

/// Commands of fcntl(2) that let the kernel send any signal to any process that this one may signal: F_SETOWN, F_SETSIG and
/// F_SETOWN_EX.
const FCNTLS_OF_SIGNALS: [i32; 3] = [8, 10, 15];

/// Calls that are allowed with any arguments: landlock confines those that take paths.
const ALLOWED: &[libc::c_long] = &numbers! {
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2
    SYS_lseek SYS_close SYS_close_range SYS_fstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs SYS_dup
    SYS_dup3 SYS_pipe2 SYS_eventfd2 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_ppoll SYS_pselect6
    SYS_openat SYS_readlinkat SYS_faccessat SYS_faccessat2 SYS_getdents64 SYS_getcwd SYS_umask SYS_flock
    SYS_fsync SYS_fdatasync SYS_sync_file_range SYS_fallocate SYS_ftruncate SYS_fadvise64 SYS_readahead
    SYS_copy_file_range SYS_sendfile SYS_splice SYS_vmsplice SYS_tee SYS_fgetxattr SYS_flistxattr
    SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_brk SYS_mlock SYS_mlock2 SYS_munlock SYS_mlockall
    SYS_munlockall SYS_mincore SYS_msync SYS_membarrier SYS_memfd_create SYS_get_mempolicy
    SYS_rseq SYS_set_robust_list SYS_get_robust_list SYS_set_tid_address SYS_futex SYS_sched_yield
    SYS_sched_getaffinity SYS_sched_setaffinity SYS_sched_getscheduler SYS_sched_getparam SYS_getcpu SYS_getpriority
    SYS_setpriority SYS_ioprio_set SYS_ioprio_get
    SYS_nanosleep SYS_clock_nanosleep SYS_clock_gettime SYS_clock_getres SYS_gettimeofday SYS_timerfd_create
    SYS_timerfd_settime SYS_timerfd_gettime SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigtimedwait
    SYS_rt_sigpending SYS_sigaltstack SYS_signalfd4 SYS_restart_syscall SYS_exit SYS_exit_group SYS_gettid SYS_getpid
    SYS_getppid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getresuid SYS_getresgid SYS_getgroups SYS_capget
    SYS_getpgid SYS_getsid SYS_getrandom SYS_uname SYS_sysinfo SYS_getrusage SYS_times SYS_wait4 SYS_waitid
    SYS_pidfd_open
    SYS_sendmsg SYS_recvmsg SYS_sendto SYS_recvfrom SYS_sendmmsg SYS_recvmmsg SYS_shutdown SYS_accept4 SYS_listen
    SYS_getsockopt SYS_setsockopt SYS_getsockname SYS_getpeername
};

/// The older forms of these calls, which not every processor has.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &numbers! {
    SYS_open SYS_stat SYS_lstat SYS_access SYS_readlink SYS_poll SYS_select SYS_dup2 SYS_pipe SYS_epoll_create
    SYS_epoll_wait SYS_getdents SYS_time SYS_getrlimit SYS_arch_prctl SYS_alarm SYS_getpgrp SYS_eventfd SYS_accept
};
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// The calls of io_uring.
const RINGS: &[libc::c_long] = &numbers! { SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register };

/// Numbers of ioctl(2) that any process may use: TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, BLKGETSIZE64 and
/// BLKSSZGET. They ask terminals and block devices, and set flags of descriptors.
const IOCTLS: [u64; 8] = [0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x8008_1272, 0x1268];

/// The operations of prctl(2) that a process applies to itself: names of threads and memory, timers, the signal of the parent's
/// death.
const PRCTLS: [i32; 7] = [
    libc::PR_SET_TIMERSLACK,
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_SET_VMA,
    libc::PR_SET_PDEATHSIG,
    libc::PR_GET_DUMPABLE,
    libc::PR_GET_NO_NEW_PRIVS,
];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Filters the calls of the calling thread, which has set no_new_privs, and of those that it starts. Returns the reason that
/// this is impossible.
pub(super) fn filter(wall: &Wall) -> Result<(), String> {
    let failed = |e: String| format!("system calls are not filtered: {e}");
    let programs = programs(wall).map_err(|e| failed(e.to_string()))?;
    // The deadly ones first: the second filter does not allow seccomp(2).
    programs.iter().try_for_each(|program| {
        seccompiler::apply_filter(program)
            .map_err(|e| failed(format!("{e}; that needs CONFIG_SECCOMP_FILTER")))
    })
}

fn programs(wall: &Wall) -> Result<Vec<BpfProgram>, BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    let allow = SeccompAction::Allow;
    let creating: &[_] = if wall.creates.is_some() { &[] } else { &[libc::SYS_mknodat] };
    // Without the list of allowed calls, instances of io_uring are to be forbidden.
    let further = if wall.asks_servers { RINGS } else { CONNECTING };
    let deadly = DEADLY.iter().chain(creating).chain(further);
    let deadly: Rules = deadly.map(|call| (*call, Vec::new())).collect();
    let deadly = SeccompFilter::new(deadly, allow.clone(), SeccompAction::KillProcess, arch)?;
    if wall.asks_servers {
        return Ok(vec![deadly.try_into()?]);
    }
    let unknown = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let allowed = SeccompFilter::new(allowed(wall)?, unknown, allow, arch)?;
    // The filter that is applied last is run first, and its answer is one of both: the order does not matter otherwise.
    Ok(vec![deadly.try_into()?, allowed.try_into()?])
}

fn allowed(wall: &Wall) -> Result<Rules, BackendError> {
    let rings = if wall.has_rings { RINGS } else { &[] };
    let plain = ALLOWED.iter().chain(OLDER).chain(rings);
    let mut rules: Rules = plain.map(|call| (*call, Vec::new())).collect();
    let thread = libc::CLONE_THREAD.unsigned_abs().into();
    rules.insert(libc::SYS_clone, vec![rule(0, SeccompCmpOp::MaskedEq(thread | NAMESPACES), thread)?]);
    let this = own_pid();
    rules.insert(libc::SYS_tgkill, vec![rule(0, SeccompCmpOp::Eq, this)?]);
    let of_this = [0, this].map(|pid| rule(0, SeccompCmpOp::Eq, pid));
    rules.insert(libc::SYS_prlimit64, of_this.into_iter().collect::<Result<_, _>>()?);
    rules.insert(libc::SYS_socketpair, stream_pairs()?);
    rules.insert(libc::SYS_fcntl, all_but(1, FCNTLS_OF_SIGNALS)?);
    rules.insert(libc::SYS_prctl, equal_to(0, PRCTLS.map(|number| number.unsigned_abs().into()))?);
    let mut ioctls = equal_to(1, IOCTLS)?;
    ioctls.extend(equal_to(1, wall.ioctls.iter().copied())?);
    rules.insert(libc::SYS_ioctl, ioctls);
    if let Some(creates) = &wall.creates {
        create_files(creates, &mut rules)?;
    }
    Ok(rules)
}

/// Allows the calls that create files. Without privileges no file gets a set-id bit, and none is a device.
fn create_files(creates: &Creates, rules: &mut Rules) -> Result<(), BackendError> {
    rules.extend(CREATING.iter().chain([&libc::SYS_mknodat]).map(|call| (*call, Vec::new())));
    rules.extend(MODES.iter().map(|(call, _)| (*call, Vec::new())));
    if !creates.privileged {
        for (call, argument) in MODES {
            rules.insert(*call, vec![rule(*argument, SeccompCmpOp::MaskedEq(SET_ID), 0)?]);
        }
        let mask = SeccompCmpOp::MaskedEq(SET_ID | u64::from(libc::S_IFMT));
        let kinds = [libc::S_IFIFO, libc::S_IFSOCK].map(|kind| rule(2, mask.clone(), kind.into()));
        rules.insert(libc::SYS_mknodat, kinds.into_iter().collect::<Result<_, _>>()?);
    }
    Ok(())
}

/// Rules for pairs of connected sockets. A socket for datagrams can send to any address, also descriptors.
fn stream_pairs() -> Result<Vec<SeccompRule>, BackendError> {
    const TYPE: u64 = 0xF;
    let of_family = SeccompCmpOp::Eq;
    let conditions = [(0, of_family, libc::AF_UNIX), (1, SeccompCmpOp::MaskedEq(TYPE), libc::SOCK_STREAM)];
    let conditions = conditions.map(|(argument, is, value)| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value.unsigned_abs().into())
    });
    Ok(vec![SeccompRule::new(conditions.into_iter().collect::<Result<_, _>>()?)?])
}

/// Rules for an argument that is none of `values`.
fn all_but<const N: usize>(argument: u8, values: [i32; N]) -> Result<Vec<SeccompRule>, BackendError> {
    let conditions = values.map(|value| {
        let value = value.unsigned_abs().into();
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
    });
    Ok(vec![SeccompRule::new(conditions.into_iter().collect::<Result<_, _>>()?)?])
}

/// Rules for an argument that is one of `values`.
fn equal_to(argument: u8, values: impl IntoIterator<Item = u64>) -> Result<Vec<SeccompRule>, BackendError> {
    values.into_iter().map(|value| rule(argument, SeccompCmpOp::Eq, value)).collect()
}

/// A rule for the lower half of an argument: the kernel's functions take these as 32 bits.
fn rule(argument: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_allowed_or_deadly_and_the_filters_fit_the_kernel() {
        let rings = Wall { has_rings: true, ..Wall::default() };
        let creates = [false, true].map(|privileged| Creates { folder: "/".into(), privileged });
        let creating = creates.map(|creates| Wall { creates: Some(creates), ..Wall::default() });
        for wall in [rings].iter().chain(&creating) {
            let allowed = allowed(wall).unwrap();
            assert_eq!(DEADLY.iter().chain(CONNECTING).find(|call| allowed.contains_key(call)), None);
            let programs = programs(wall).unwrap();
            assert_eq!(programs.len(), 2);
            // BPF_MAXINSNS.
            assert!(programs.iter().all(|program| program.len() < 4096));
        }
        let asking = Wall { asks_servers: true, ..Wall::default() };
        assert_eq!(programs(&asking).unwrap().len(), 1);
    }
}
