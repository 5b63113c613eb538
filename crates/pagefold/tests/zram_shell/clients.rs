//! Programs made for the kernel's zram, run unchanged in `zram-shell`.

use crate::shell::{sandbox, shell, shell_ok};
use crate::support::{Ran, Sandbox};
use pagefold_testkit::skipped;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[test]
fn zramctl_lists_and_sets_up_the_disks() {
    let Some(s) = sandbox("zramctl_lists_and_sets_up_the_disks", &["zramctl"]) else { return };
    let out = shell_ok(
        &s,
        "--rm",
        r#"set -e
        device=$(zramctl --find --size 32M --algorithm lz4)
        echo $device
        zramctl --raw --bytes --noheadings --output NAME,DISKSIZE,ALGORITHM
        zramctl --reset $device"#,
    );
    assert_eq!(out, "/dev/zram0\n/dev/zram0 33554432 lz4\n");
}

/// A sandbox for a test that swaps to the shell's first device, and a lock that keeps other such tests out. Tools compare
/// names with those of `/proc/swaps`, which are the same in all mount namespaces, so they would take it for a device of the
/// kernel with this name, or for the other test's.
fn swap_sandbox(test: &str) -> Option<(Sandbox, MutexGuard<'static, ()>)> {
    static SWAP: Mutex<()> = Mutex::new(());
    let alone = SWAP.lock().unwrap_or_else(PoisonError::into_inner);
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap();
    if swaps.lines().any(|line| line.starts_with("/dev/zram0 ")) {
        skipped!("{test}: this machine swaps to its own /dev/zram0");
        return None;
    }
    Some((sandbox(test, &["mkswap", "swapon"])?, alone))
}

/// The swap outlasts the shell in which it was made, as the disk does.
#[test]
fn a_device_is_used_as_swap_until_swapoff_or_removal_with_force() {
    let test = "a_device_is_used_as_swap_until_swapoff_or_removal_with_force";
    let Some((s, _alone)) = swap_sandbox(test) else { return };
    let script = r#"
        modprobe zram
        cd /sys/block/zram0
        echo zstd >comp_algorithm
        echo 20M >disksize
        mkswap -q /dev/zram0 || exit 2
        swapon /dev/zram0 || exit 3
        grep -c '^/dev/zram0 .*partition.*20476' /proc/swaps
        echo 1 | tee reset 2>&1 >/dev/null | grep -o 'Device or resource busy'
        echo 0 | tee /sys/class/zram-control/hot_remove 2>&1 >/dev/null | grep -o 'Device or resource busy'
        swapoff /dev/zram0 || exit 4
        echo 1 >reset || exit 5
        echo 24M >disksize
        mkswap -q /dev/zram0 && swapon /dev/zram0"#;
    let out = shell_ok(&s, "-q --rm", script);
    assert_eq!(out, "1\nDevice or resource busy\nDevice or resource busy\n");
    // The kernel names the area by its path in the shell.
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap();
    assert!(swaps.lines().any(|line| line.starts_with("/zram0 ") && line.contains("24572")), "{swaps}");
    s.run("disk remove zram0").fails(4, "swapoff");
    s.ok("disk remove zram0 --force");
    assert_eq!(s.left(), Vec::<String>::new());
}

/// The program of systemd's zram-generator, if it is installed.
fn generator() -> Option<PathBuf> {
    let folders = ["/usr/lib", "/lib", "/usr/local/lib"].map(Path::new);
    let paths = folders.map(|folder| folder.join("systemd/system-generators/zram-generator"));
    paths.into_iter().find(|path| path.is_file())
}

#[test]
fn zram_generator_sets_up_a_swap_device_and_resets_it() {
    let test = "zram_generator_sets_up_a_swap_device_and_resets_it";
    let Some((s, _alone)) = swap_sandbox(test) else { return };
    let Some(generator) = generator() else {
        return skipped!("{test}: needs zram-generator (Debian: systemd-zram-generator)");
    };
    // The generator does nothing in a container. Afterwards this does what systemd does with the units.
    let script = r#"set -e
        mount -t tmpfs none /etc/systemd
        printf '[zram0]\nzram-size = 28\ncompression-algorithm = zstd\nswap-priority = 7\n' \
            >/etc/systemd/zram-generator.conf
        mkdir bin units
        printf '#!/bin/sh\nexit 1\n' >bin/systemd-detect-virt
        chmod +x bin/systemd-detect-virt
        PATH=$PWD/bin:$PATH "$1" units
        ls units/swap.target.wants
        test ! -e /sys/block/zram1
        cat /sys/block/zram0/initstate
        "$1" --setup-device zram0 2>/dev/null
        grep -o '\[.*\]' /sys/block/zram0/comp_algorithm
        cat /sys/block/zram0/disksize
        setting() { sed -n "s/^$1=//p" units/dev-zram0.swap; }
        swapon --options="$(setting Options)" --priority "$(setting Priority)" "$(setting What)"
        swapon --show=NAME,SIZE,PRIO --noheadings --raw | grep zram0
        swapoff "$(setting What)"
        "$1" --reset-device zram0
        cat /sys/block/zram0/disksize"#;
    let mut command = s.command("-q zram-shell --rm -- sh -c");
    command.arg(script).arg("sh").arg(generator).current_dir(s.path(""));
    let ran = Ran::new("zram-generator", command.output().unwrap());
    let wanted = "dev-zram0.swap\n0\n[zstd]\n29360128\n/dev/zram0 28M 7\n0\n";
    assert_eq!((ran.code, ran.out.as_str()), (0, wanted), "{ran:?}");
    assert_eq!(s.left(), Vec::<String>::new());
}

#[test]
fn the_script_of_the_reference_test_runs_as_on_the_kernels_zram() {
    let test = "the_script_of_the_reference_test_runs_as_on_the_kernels_zram";
    let Some(s) = sandbox(test, &["fio"]) else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/fio/zram.sh");
    let environment = "ZRAM_SIZE=8M ZRAM_COMP_ALG=lz4 MAX_ITER=2 FIO_TEST=static";
    let ours = shell(&s, "-q --rm", &format!("{environment} sh {}", script.display()));
    let is_result = |line: &&str| line.contains("READ:") || line.contains("WRITE:");
    let check = |ran: &Ran| {
        assert_eq!(ran.code, 0, "{ran:?}");
        // Six jobs, of which the last two read and write.
        assert_eq!(ran.out.lines().filter(is_result).count(), 2 * 8, "{ran:?}");
        let stored: Vec<_> = ran.out.lines().filter_map(|line| line.strip_prefix("mm_stat ")).collect();
        let stored: Vec<_> = stored.iter().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(stored, ["8388608"; 2], "{ran:?}");
    };
    check(&ours);
    assert_eq!(s.left(), Vec::<String>::new());
    if Path::new("/sys/class/zram-control/hot_add").exists() {
        let mut command = Command::new("sh");
        command.arg(&script).envs(environment.split(' ').filter_map(|pair| pair.split_once('=')));
        check(&Ran::new("zram.sh", command.output().unwrap()));
    }
}
