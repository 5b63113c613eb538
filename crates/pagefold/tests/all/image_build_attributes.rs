//! Options of `image build` that change times, hard links and attributes, for directories, archives and images.

use crate::support::{Ran, Sandbox, is_root};
use pagefold_testkit::skipped;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A sandbox in which a script made `tree`, and `tree.tar` and `tree.erofs` of it, which have all attributes. Needs root and
/// a file system with attributes.
fn sandbox(test: &str, script: &str) -> Option<Sandbox> {
    if !is_root() {
        skipped!("{test}: needs root");
        return None;
    }
    let s = Sandbox::new();
    fs::create_dir(s.path("tree")).unwrap();
    let ran = Command::new("sh").args(["-ec", script]).current_dir(s.path("tree")).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let mut tar = Command::new("tar");
    tar.args([
        "--format=pax",
        "--xattrs",
        "--xattrs-include=*",
        "--acls",
        "--numeric-owner",
        "-cf",
        "tree.tar",
        "-C",
    ]);
    assert!(tar.args(["tree", "."]).current_dir(s.path("")).status().unwrap().success());
    s.ok(&format!("image build -q --xattrs-include * {} {}", at(&s, "tree"), at(&s, "tree.erofs")));
    Some(s)
}

fn at(s: &Sandbox, name: &str) -> String {
    s.path(name).display().to_string()
}

/// Builds `out` from a source, with words of the environment. Returns what the command prints.
fn build(s: &Sandbox, options: &str, source: &str, date: Option<&str>) -> Ran {
    let words = format!("image build -z lz4 {options} {} {}", at(s, source), at(s, "out"));
    let mut command = s.command(&words);
    command.env_remove("SOURCE_DATE_EPOCH").envs(date.map(|date| ("SOURCE_DATE_EPOCH", date)));
    Ran::new(&words, command.output().unwrap())
}

fn built(s: &Sandbox, options: &str, source: &str, date: Option<&str>) -> Ran {
    let ran = build(s, options, source, date);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran
}

/// A file in `out`, as `image show` describes it.
fn show(s: &Sandbox, path: &str) -> serde_json::Value {
    serde_json::from_str(&s.ok(&format!("image show --json {} {path}", at(s, "out")))).unwrap()
}

/// The names of the attributes of a file in `out`, with their values.
fn xattrs(s: &Sandbox, path: &str) -> String {
    let shown = show(s, path);
    let all = shown["xattrs"].as_array().unwrap_or_else(|| panic!("{shown}")).iter();
    let one = |xattr: &serde_json::Value| {
        format!(
            "{}={}",
            xattr["name"].as_str().unwrap(),
            xattr["value"].as_str().unwrap().trim_end_matches('\0')
        )
    };
    all.map(one).collect::<Vec<_>>().join(" ")
}

const SOURCES: [&str; 3] = ["tree", "tree.tar", "tree.erofs"];

#[test]
fn files_are_no_newer_than_the_source_date() {
    let script = "mkdir d; echo 1 > d/new; echo 2 > old; touch -d @2000.5 d/new; touch -d @999.75 old
        echo 3 > same; touch -d @1000.25 same; ln -s old link; touch -h -d @3000 link; touch -d @5000 d .";
    let Some(s) = sandbox("files_are_no_newer_than_the_source_date", script) else { return };
    for source in SOURCES {
        built(&s, "", source, Some("1000"));
        let bytes = fs::read(s.path("out")).unwrap();
        // The same tree whose newer times are that one has the same image.
        let script =
            "rm -rf twin; cp -a tree twin; touch -h -d @1000 twin/d/new twin/same twin/link twin/d twin";
        let ran = Command::new("sh").args(["-ec", script]).current_dir(s.path("")).status().unwrap();
        assert!(ran.success());
        built(&s, "", "twin", Some("1000"));
        assert!(fs::read(s.path("out")).unwrap() == bytes, "{source}");
        // It is the time of creation also if the files have another one.
        built(&s, "--mtime 7", source, Some("1000"));
        let shown = s.ok(&format!("image show {}", at(&s, "out")));
        assert!(shown.contains("1970-01-01 00:16:40"), "{shown}");
        let with_mtime = fs::read(s.path("out")).unwrap();
        built(&s, "--mtime 7", source, None);
        assert!(fs::read(s.path("out")).unwrap() != with_mtime && with_mtime != bytes);
    }
    build(&s, "", "tree", Some("2026-11-29")).fails(2, "SOURCE_DATE_EPOCH is '2026-11-29'");
}

#[test]
fn names_of_one_inode_become_files() {
    let script = "mkdir d; seq 100000 > a; ln a d/b; ln a c; mkfifo p; ln p q; ln -s a l; ln l m";
    let Some(s) = sandbox("names_of_one_inode_become_files", script) else { return };
    let mut images = Vec::new();
    for source in SOURCES {
        built(&s, "--hard-dereference --verify", source, None);
        let links = ["/a", "/d/b", "/c", "/p", "/q", "/l", "/m"].map(|path| show(&s, path));
        for (at, shown) in links.iter().enumerate() {
            assert_eq!(shown["nlink"], 1, "{source}: {shown}");
            assert!(links[..at].iter().all(|other| other["nid"] != shown["nid"]));
        }
        s.ok(&format!("image check --strict {}", at(&s, "out")));
        let contents = s.ok(&format!("image cat {} /d/b", at(&s, "out")));
        assert!(contents == fs::read_to_string(s.path("tree/a")).unwrap());
        images.push(fs::read(s.path("out")).unwrap());
        built(&s, "", source, None);
        assert!(show(&s, "/a")["nlink"] == 3 && fs::read(s.path("out")).unwrap() != images[0]);
    }
    // GNU tar has no hard links between pipes.
    assert!(images[0] == images[2]);
    let plain = built(&s, "--hard-dereference --dedupe none --json", "tree", None);
    let shared = built(&s, "--hard-dereference --json", "tree", None);
    let bytes =
        |ran: &Ran| serde_json::from_str::<serde_json::Value>(&ran.out).unwrap()["image_bytes"].clone();
    assert!(bytes(&plain).as_u64() > bytes(&shared).as_u64(), "equal contents are stored once");
}

/// Labels of several kinds, an access list whose mask is wider than the permissions of the group, and others.
const LABELLED: &str = "echo 1 > f; chmod 640 f; ln -s f l
    setfattr -n user.a -v 1 f; setfattr -n user.b -v 2 f; setfattr -n trusted.t -v 3 f
    setfattr -n security.selinux -v host_u:host_r:host_t:s0 f; setfattr -h -n security.selinux -v other l
    setfattr -n security.ima -v hash f; setfattr -n security.SMACK64 -v _ f";

#[test]
fn labels_of_the_host_get_into_images_only_if_wanted() {
    let Some(s) = sandbox("labels_of_the_host_get_into_images_only_if_wanted", LABELLED) else { return };
    let all = "security.SMACK64=_ security.ima=hash security.selinux=host_u:host_r:host_t:s0 trusted.t=3 user.a=1 user.b=2";
    let ran = built(&s, "--json", "tree", None);
    assert_eq!(xattrs(&s, "/f"), "trusted.t=3 user.a=1 user.b=2");
    assert!(ran.err.contains("note: 4 labels of this host left out, such as security.selinux"), "{ran:?}");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&ran.out).unwrap()["host_labels"], 4);
    for source in ["tree.tar", "tree.erofs"] {
        let ran = built(&s, "", source, None);
        assert!(!ran.err.contains("label"), "{ran:?}");
        assert_eq!(xattrs(&s, "/f"), all, "{source}");
    }
    for source in SOURCES {
        for (options, wanted) in [
            ("--xattrs-include *", all),
            ("--xattrs-include security.selinux", "security.selinux=host_u:host_r:host_t:s0"),
            ("--xattrs-include user.* --xattrs-exclude *.a", "user.b=2"),
            ("--xattrs-exclude *.a --xattrs-include user.*", "user.b=2"),
            ("--xattrs-exclude security.* --xattrs-exclude user.b", "trusted.t=3 user.a=1"),
            ("--no-xattrs", ""),
            ("--no-xattrs --set-xattr f:user.c=0x41", "user.c=A"),
            (
                "--xattrs-include user.a --set-xattr user.a=0sWg== --set-xattr *:trusted.t=5",
                "trusted.t=5 user.a=Z",
            ),
        ] {
            let ran = built(&s, options, source, None);
            assert_eq!(xattrs(&s, "/f"), wanted, "{source} {options}");
            assert!(!ran.err.contains("note:"), "{ran:?}");
        }
        let ran = built(
            &s,
            "--xattrs-exclude users.* --xattrs-include user.* --set-xattr g:user.a=1",
            source,
            None,
        );
        for note in ["--xattrs-exclude 'users.*' matched nothing", "--set-xattr 'g:user.a=1' matched nothing"]
        {
            assert!(ran.err.contains(note), "{ran:?}");
        }
    }
    for (options, says) in [
        ("--no-xattrs --xattrs-include user.*", "cannot be used with"),
        ("--xattrs-include [", "--xattrs-include: the pattern '[' is invalid"),
        ("--set-xattr user.a", "--set-xattr: 'user.a' has no value"),
        ("--set-xattr user.a=0x1", "hexadecimal"),
        ("--escape-overlay --strip-overlay", "cannot be used with"),
    ] {
        let ran = build(&s, options, "tree", None);
        assert!(ran.code == 2 && ran.err.contains(says), "{ran:?}");
    }
}

#[test]
fn a_file_without_its_access_list_has_the_permissions_of_its_group() {
    let test = "a_file_without_its_access_list_has_the_permissions_of_its_group";
    if !crate::support::have("setfacl") {
        skipped!("{test}: setfacl is not installed");
        return;
    }
    let script = "echo 1 > f; chmod 640 f; setfacl -m u:1:rwx f; cp -a f g; setfacl -b g; touch -r f g";
    let Some(s) = sandbox(test, script) else { return };
    for source in SOURCES {
        for options in ["--no-xattrs", "--xattrs-exclude system.*"] {
            built(&s, options, source, None);
            let [f, g] = ["/f", "/g"].map(|path| show(&s, path)["mode"].clone());
            assert!(f == g && !f.is_null(), "{source} {options}: {f} {g}");
        }
        built(&s, "", source, None);
        assert!(show(&s, "/f")["mode"] != show(&s, "/g")["mode"]);
    }
}

#[test]
fn labels_come_from_a_file() {
    let Some(s) = sandbox("labels_come_from_a_file", LABELLED) else { return };
    let text = "# labels\n/.*  --  a:b:file\n/.*  -d  a:b:dir\n/l  <<none>>\n";
    fs::write(s.path("contexts"), text).unwrap();
    let option = format!("--file-contexts {}", at(&s, "contexts"));
    for source in SOURCES {
        let ran = built(&s, &option, source, None);
        let labels = ["/", "/f", "/l"].map(|path| xattrs(&s, path));
        assert_eq!(labels[0], "security.selinux=a:b:dir", "{source}");
        assert!(
            labels[1].contains("security.selinux=a:b:file") && labels[1].contains("user.a=1"),
            "{labels:?}"
        );
        assert!(!labels[2].contains("selinux"), "{labels:?}");
        // That label is replaced, and not left out.
        assert_eq!(ran.err.contains("2 labels of this host left out"), source == "tree", "{ran:?}");
        built(&s, &format!("{option} --no-xattrs --set-xattr f:security.selinux=own"), source, None);
        assert_eq!(["/f", "/l"].map(|path| xattrs(&s, path)), ["security.selinux=own", ""]);
    }
    fs::write(s.path("contexts"), "/a b\n/(( c\n").unwrap();
    build(&s, &option, "tree", None).fails(2, "is a file whose line 2 is wrong: the expression is invalid");
    build(&s, "--file-contexts /none/such", "tree", None).fails(3, "--file-contexts: reading '/none/such'");
}

/// The layers of an overlay mount in a tree: a whiteout, which is a hard link to another, and opaque directories.
const NESTED: &str =
    "mkdir -p low/op low/merged upper/op upper/merged; touch low/x low/op/hidden low/merged/x low/kept
    mknod upper/x c 0 0; ln upper/x upper/merged/x; ln upper/x upper/op/hidden; echo new > upper/op/new
    for kind in trusted user; do setfattr -n $kind.overlay.opaque -v y upper/op; setfattr -n $kind.overlay.origin upper/op; done";

#[test]
fn an_overlay_mount_inside_is_noted_and_can_be_left_out() {
    let Some(s) = sandbox("an_overlay_mount_inside_is_noted_and_can_be_left_out", NESTED) else { return };
    let mut stripped = Vec::new();
    for source in SOURCES {
        let ran = built(&s, "--json", source, None);
        assert!(ran.err.contains("note: the source has 3 whiteouts and "), "{ran:?}");
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(report["overlay_whiteouts"], 3, "{source}");
        for options in ["--whiteouts overlay", "--escape-overlay", "--strip-overlay", "--exclude upper"] {
            let ran = built(&s, options, source, None);
            assert!(!ran.err.contains("overlay"), "{ran:?}");
        }
        let ran = built(&s, "--strip-overlay --verify", source, None);
        assert!(ran.out.contains("3 whiteouts and ") && ran.out.contains("left out"), "{ran:?}");
        let listed = s.ok(&format!("image ls -R {} /upper", at(&s, "out")));
        assert!(!listed.contains("/x") && !listed.contains("hidden") && listed.contains("new"), "{listed}");
        assert_eq!(xattrs(&s, "/upper/op"), "");
        stripped.push(fs::read(s.path("out")).unwrap());
    }
    assert!(stripped[0] == stripped[1] && stripped[0] == stripped[2]);
}

#[test]
fn attributes_of_whiteouts_stay_without_those_of_the_source() {
    let script = "touch .wh.gone .wh..wh..opq f; setfattr -n trusted.a -v 1 .; mkdir d; mknod d/x c 0 0";
    let Some(s) = sandbox("attributes_of_whiteouts_stay_without_those_of_the_source", script) else { return };
    for source in SOURCES {
        built(&s, "--no-xattrs --whiteouts overlay", source, None);
        assert_eq!(xattrs(&s, "/"), "trusted.overlay.opaque=y trusted.overlay.origin=", "{source}");
        built(&s, "--xattrs-exclude trusted.* --escape-overlay", source, None);
        assert_eq!(
            xattrs(&s, "/d/x"),
            "trusted.overlay.overlay.whiteout= user.overlay.whiteout=",
            "{source}"
        );
    }
}

#[test]
fn an_overlay_mount_inside_works_in_an_overlay_mount_of_the_image() {
    let test = "an_overlay_mount_inside_works_in_an_overlay_mount_of_the_image";
    let Some(s) = sandbox(test, NESTED) else { return };
    if pagefold_sys::fusedev::open().is_err() {
        skipped!("{test}: needs /dev/fuse");
        return;
    }
    fs::create_dir(s.path("at")).unwrap();
    // The names in the mount inside where nothing is nested.
    let listing = "find inner -mindepth 1 | sort; (cd inner; ls -R | wc -l)";
    let plain = format!(
        "mkdir inner; mount -t overlay -o ro,lowerdir=tree/upper:tree/low inner inner; {listing}; umount inner; rmdir inner"
    );
    let wanted = sh(&s, &plain);
    assert!(
        wanted.contains("inner/op/new") && !wanted.contains("x\n") && !wanted.contains("hidden"),
        "{wanted}"
    );
    for (options, outer, inner) in [
        ("", "", ""),
        ("", "", ",userxattr"),
        ("--whiteouts overlay", "", ""),
        ("--whiteouts overlay-user", ",userxattr", ",userxattr"),
        ("--whiteouts overlay-user", ",userxattr", ""),
    ] {
        for source in SOURCES {
            built(&s, &format!("--escape-overlay --verify {options}"), source, None);
            s.ok(&format!("image mount -q --allow-other {} {}", at(&s, "out"), at(&s, "at")));
            let script = format!(
                "mkdir empty outer inner; mount -t overlay -o ro{outer},lowerdir=at:empty outer outer
                 mount -t overlay -o ro{inner},lowerdir=outer/upper:outer/low inner inner; {listing}
                 umount inner outer; rmdir empty outer inner"
            );
            let found = sh(&s, &script);
            s.ok(&format!("image unmount {}", at(&s, "at")));
            assert_eq!(found, wanted, "{source}: {options}, outer {outer}, inner {inner}");
        }
    }
}

/// Runs a script in a mount namespace.
fn sh(s: &Sandbox, script: &str) -> String {
    let mut command = Command::new("unshare");
    let ran = command.args(["-m", "sh", "-ec", script]).current_dir(s.path("")).output().unwrap();
    assert!(ran.status.success(), "{script}: {ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn equal_trees_in_other_places_give_the_same_bytes() {
    let test = "equal_trees_in_other_places_give_the_same_bytes";
    let script = "seq 1 300 | while read n; do mkdir -p d$((n % 7))/e$((n % 3)); seq $n $((n * 40)) > d$((n % 7))/e$((n % 3))/f$n; done
        ln d1/e1/f1 z; ln d1/e1/f1 a; ln -s z link; mkfifo pipe; mknod dev c 5 1; setfattr -n user.a -v 1 z
        head -c 3000000 /dev/zero > holes; echo end >> holes; fallocate -d holes";
    let Some(s) = sandbox(test, script) else { return };
    built(&s, "--threads 1", "tree", None);
    let wanted = fs::read(s.path("out")).unwrap();
    let same = |options: &str, source: &str, change: &dyn Fn(&mut Command)| {
        let words = format!("image build -q -z lz4 {options} {} {}", at(&s, source), at(&s, "out"));
        let mut command = s.command(&words);
        change(&mut command);
        let ran = Ran::new(&words, command.output().unwrap());
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(fs::read(s.path("out")).unwrap() == wanted, "{words}");
    };
    same("--threads 3", "tree", &|_| {});
    same("--memory 128M", "tree", &|_| {});
    same("", "tree", &|command| {
        command.env("LC_ALL", "tr_TR.UTF-8").env("TZ", "Asia/Kathmandu").env("HOME", "/none");
    });
    // Another order of names and inodes, in another file system.
    let copy = |to: &Path| {
        let script = format!(
            "umask 077; cd '{0}'; find . -mindepth 1 | sort -r | tar --xattrs --numeric-owner --sparse --no-recursion -cf - -T - | \
             tar --xattrs -C '{1}' -xpf -; touch -r . '{1}'; chmod --reference=. '{1}'",
            at(&s, "tree"),
            to.display()
        );
        sh(&s, &script);
    };
    for name in ["copy", "other"] {
        fs::create_dir(s.path(name)).unwrap();
    }
    copy(&s.path("copy"));
    same("", "copy", &|_| {});
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(s.path("other")).status().unwrap();
    assert!(mounted.success());
    copy(&s.path("other"));
    let words = format!("image build -q -z lz4 {} {}", at(&s, "other"), at(&s, "out"));
    let ran = s.run(&words);
    assert!(Command::new("umount").arg(s.path("other")).status().unwrap().success());
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(fs::read(s.path("out")).unwrap() == wanted, "another file system");
    same("", "tree.erofs", &|_| {});
}
