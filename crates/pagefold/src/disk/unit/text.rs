//! The text of the units of a plan.

use super::super::systemd::{argument, escape_path, value, word};
use super::places::{device_unit, is_below};
use super::{HEADER, JOURNAL, Plan, RUNTIME_DIR};
use pagefold_control::instance::{DEVICE_LINK, MOUNT_DIR};

/// Makes an ext4 on a disk with nothing on it, when the disk is there. The words are the device, the directory,
/// and the saved disk or nothing. blkid ends with 2 also if the device cannot be read, and a saved disk has contents that
/// may be unknown to it. mkfs.ext4 copies what is in the directory, and not its owner and mode.
const MAKE_FS: &str = "\
    blkid -p \"$$0\" >/dev/null; case $$? in 0|8) exit 0;; 2) ;; *) exit 1;; esac; \
    if [ -n \"$$2\" ] && [ -e \"$$2\" ]; then \
    echo \"$$2 has no file system that blkid knows: make one on $$0, or remove $$2 for a new disk\" >&2; exit 1; fi; \
    head -c 1048576 \"$$0\" >/dev/null && mkdir -p \"$$1\" && \
    mkfs.ext4 -q -E \"root_owner=$$(stat -c %u:%g \"$$1\")\" -d \"$$1\" \"$$0\" && \
    debugfs -w -R \"set_inode_field <2> mode 0x$$(stat -c %f \"$$1\")\" \"$$0\"";

/// A unit: the name of its file, and the contents.
#[derive(Debug)]
pub struct Unit {
    pub name: String,
    pub text: String,
}

impl Plan {
    /// All units of the disk.
    pub fn units(&self) -> Vec<Unit> {
        let mut units = vec![self.disk_service()];
        units.extend(self.mount_of_disk());
        if let Some(every_s) = self.every_s {
            units.extend([self.save_service(), self.save_timer(every_s)]);
        }
        units
    }

    /// The command line of this program with these words.
    fn command(&self, words: &[&str]) -> String {
        let words = [self.program.as_str(), "disk"].into_iter().chain(words.iter().copied());
        words.map(argument).collect::<Vec<_>>().join(" ")
    }

    /// The command line that saves the disk, if it is saved.
    fn save_command(&self) -> Option<String> {
        let file = self.save_to.as_ref()?.path.as_str();
        Some(self.command(&["save", "--incremental", self.name.as_str(), file]))
    }

    fn device_link(&self) -> String {
        format!("{RUNTIME_DIR}/{}/{DEVICE_LINK}", self.name)
    }

    /// The settings for what must be mounted before a unit starts.
    fn needs_mounts(&self) -> String {
        let mut text = String::new();
        let folders = self.folders.iter().map(|folder| word(folder)).collect::<Vec<_>>().join(" ");
        if !folders.is_empty() {
            text += &format!("RequiresMountsFor={folders}\n");
        }
        if let Some(at) = self.save_to.as_ref().and_then(|place| place.mount_point.as_ref()) {
            text += "# Otherwise an empty folder would be taken for one in which nothing was saved.\n";
            text += &format!("AssertPathIsMountPoint={}\n", value(at));
        }
        text
    }

    fn disk_service(&self) -> Unit {
        let name = self.name.as_str();
        let mut text =
            format!("{HEADER}[Unit]\nDescription=Compressed RAM disk {name}\n{}", self.needs_mounts());
        if let Some(device) = self.backing.as_deref().and_then(device_unit) {
            text += &format!("Requires={device}\nAfter={device}\n");
        }
        text += "Wants=modprobe@fuse.service modprobe@loop.service\n\
                 After=modprobe@fuse.service modprobe@loop.service\n";
        // systemd would unmount the file behind a loop device beside the last save, and report that it cannot.
        let served = escape_path(&format!("{RUNTIME_DIR}/{name}/{MOUNT_DIR}"));
        text += &format!("After={served}.mount\n");
        if self.mount.is_some() {
            // Services of early boot must not wait for the system that waits for them.
            text += "DefaultDependencies=no\n\
                     After=systemd-modules-load.service systemd-tmpfiles-setup-dev.service systemd-remount-fs.service\n\
                     Conflicts=shutdown.target\nBefore=shutdown.target\n";
        }
        text += "\n[Service]\n\
                 # Active as long as a process of the disk runs, of which each may be replaced.\n\
                 Type=forking\nGuessMainPID=no\nOOMPolicy=continue\n\
                 # systemd kills no process of the disk: if the save fails, the disk stays.\nKillMode=process\n";
        text += &format!("TimeoutStartSec={0}s\nTimeoutStopSec={0}s\n", self.timeout_s);
        text +=
            "# The journal may have closed its files before the last save.\nStandardError=journal+console\n";
        text += &self.commands();
        if self.mount.is_none() {
            text += "\n[Install]\nWantedBy=multi-user.target\n";
        }
        Unit { name: format!("{}.service", self.service()), text }
    }

    /// The commands of the service, at its start and its stop.
    fn commands(&self) -> String {
        let name = self.name.as_str();
        let file = self.save_to.as_ref().map(|place| place.path.as_str());
        let named = format!("--name={name}");
        let restore = file.map(|file| format!("--restore-if-exists={file}"));
        let mut words = vec!["create", "--unless-running", &named];
        words.extend(restore.as_deref());
        // A damaged file must be refused here, and the file system of a whole one can be unmounted.
        words.extend(restore.is_some().then_some("--restore-now"));
        words.extend(self.options.iter().map(String::as_str));
        let mut text = format!("ExecStart={}\n", self.command(&words));
        if let Some(mount) = &self.mount {
            text += "# blkid's exit code 2: nothing is on the device.\n";
            let words = [&self.device_link(), mount.as_str(), file.unwrap_or("")].map(argument);
            text += &format!("ExecStartPost=/bin/sh -c '{}' {}\n", value(MAKE_FS), words.join(" "));
        }
        if let Some(save) = self.save_command() {
            text += &format!("ExecStop={save}\n");
        }
        text + &format!("ExecStop={}\n", self.command(&["remove", "--force", name]))
    }

    fn mount_of_disk(&self) -> Option<Unit> {
        let (mount, service) = (self.mount.as_deref()?, self.service());
        let journal = if is_below(JOURNAL, mount) { " systemd-journal-flush.service" } else { "" };
        let text = format!(
            "{HEADER}[Unit]\nDescription=Compressed RAM disk {} at {}\n\
             BindsTo={service}.service\nAfter={service}.service\nBefore=local-fs.target{journal}\n\n\
             [Mount]\nWhat={}\nWhere={}\nType=ext4\nOptions=discard,noatime\n\n\
             [Install]\nWantedBy=local-fs.target\n",
            self.name,
            value(mount),
            self.device_link(),
            value(mount),
        );
        Some(Unit { name: self.mount_unit()?, text })
    }

    fn save_service(&self) -> Unit {
        let service = self.service();
        // A save that is stopped with the disk ends before the file system is unmounted, which it would hold.
        let mounted = self.mount_unit().map(|unit| format!(" {unit}")).unwrap_or_default();
        let text = format!(
            "{HEADER}[Unit]\nDescription=Save the compressed RAM disk {}\n\
             Requisite={service}.service\nAfter={service}.service{mounted}\nPartOf={service}.service\nStartLimitIntervalSec=0\n{}\n\
             [Service]\nType=oneshot\nExecStart={}\n",
            self.name,
            self.needs_mounts(),
            self.save_command().unwrap_or_default(),
        );
        Unit { name: format!("{}.service", self.save()), text }
    }

    fn save_timer(&self, every_s: u64) -> Unit {
        let service = self.service();
        let text = format!(
            "{HEADER}[Unit]\nDescription=Save the compressed RAM disk {} now and then\n\
             BindsTo={service}.service\nAfter={service}.service\n\n\
             [Timer]\nOnActiveSec={every_s}s\nOnUnitInactiveSec={every_s}s\nAccuracySec=1s\n\n\
             [Install]\nWantedBy={service}.service\n",
            self.name,
        );
        Unit { name: format!("{}.timer", self.save()), text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::Command;

    /// Runs the script where blkid ends with this code, and mkfs.ext4 notes that it ran. Returns whether the script
    /// succeeded, and whether it made a file system.
    fn run(blkid: i32, device: &Path, saved: &str) -> (bool, bool) {
        let folder = tempfile::tempdir().unwrap();
        for (name, script) in [
            ("blkid", format!("#!/bin/sh\nexit {blkid}\n")),
            ("mkfs.ext4", format!("#!/bin/sh\ntouch {}/made\n", folder.path().display())),
            ("debugfs", "#!/bin/sh\n".to_string()),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, script).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        let mut shell = Command::new("/bin/sh");
        let ran = shell.args(["-c", &MAKE_FS.replace("$$", "$")]);
        let ran = ran.arg(device).arg(folder.path().join("mount")).arg(saved);
        let ran = ran.env("PATH", format!("{}:/usr/bin:/bin", folder.path().display())).output().unwrap();
        (ran.status.success(), folder.path().join("made").exists())
    }

    #[test]
    fn a_new_file_system_has_the_owner_and_mode_of_the_directory() {
        let test = "a_new_file_system_has_the_owner_and_mode_of_the_directory";
        let has = |tool: &str| Command::new(tool).arg("-V").output().is_ok();
        if !has("mkfs.ext4") || !has("debugfs") || !has("blkid") {
            pagefold_testkit::skipped!("{test}: needs e2fsprogs and blkid");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (device, mount) = (folder.path().join("device"), folder.path().join("mount"));
        std::fs::File::create(&device).unwrap().set_len(8 << 20).unwrap();
        std::fs::create_dir(&mount).unwrap();
        std::fs::write(mount.join("file"), "contents").unwrap();
        // Only root can give it to others.
        let is_root = std::os::unix::fs::chown(&mount, Some(12), Some(34)).is_ok();
        std::fs::set_permissions(&mount, PermissionsExt::from_mode(0o2750)).unwrap();
        let mut shell = Command::new("/bin/sh");
        let ran = shell
            .args(["-c", &MAKE_FS.replace("$$", "$")])
            .arg(&device)
            .arg(&mount)
            .arg("")
            .output()
            .unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let stat = Command::new("debugfs").args(["-R", "stat <2>"]).arg(&device).output().unwrap();
        let stat = String::from_utf8(stat.stdout).unwrap();
        assert!(stat.contains("Mode:  02750"), "{stat}");
        assert!(!is_root || stat.contains("User:    12   Group:    34"), "{stat}");
    }

    #[test]
    fn a_file_system_is_made_only_on_a_new_disk_that_can_be_read() {
        let device = tempfile::NamedTempFile::new().unwrap();
        let device = device.path();
        let missing = Path::new("/missing/device");
        assert_eq!(run(2, device, ""), (true, true));
        assert_eq!(run(2, device, "/missing/saved"), (true, true));
        for (blkid, device, saved, succeeds) in [
            (0, device, "", true),
            // Several file systems were found.
            (8, device, "", true),
            (2, device, "/proc/self/status", false),
            (2, missing, "", false),
            (1, device, "", false),
            (127, device, "", false),
        ] {
            assert_eq!(run(blkid, device, saved), (succeeds, false), "{blkid} {device:?} {saved}");
        }
    }
}
