//! `pagefold image`: the commands on images.
//!
//! `pagefold-image` does the work; these modules define the arguments and format the output.
//!
//! | module | contents |
//! |---|---|
//! | `mount`, `unmount`, `restart`, `mounts`, `stats` | the commands on mounted images, each with its arguments |
//! | `build`, `build_args`, `build_source`, `build_summary` | the command that makes images, its arguments, what it makes them from (`build_source/layers.rs`: layers), its summary |
//! | `layer_cache` | `build --layer-cache`, which makes an image of each layer |
//! | `further` | what only `mkfs.erofs` can choose for `build` |
//! | `ls`, `cat`, `show`, `extract`, `tar`, `check` | the commands on images, each with its arguments |
//! | `extract_total` | the total of the progress of `extract` |
//! | `copy` | the command that copies an image from a server |
//! | `push` | the command that publishes an image in a registry |
//! | `digest` | the command that computes digests and Merkle trees |
//! | `kernel`, `tamper` | `mount --kernel`, and its check that only root can change the image |
//! | `find` | finding a mounted image by its directory or path |
//! | `overview`, `usage`, `file` | the output of `show`: on an image, on the uses of its bytes, on a file in it |
//! | `region` | the part of a file or device that `build` writes |
//! | `target` | the file that `build`, `tar -o` and `disk save` write |
//! | `worker` | the confined process in which commands that write decode |
//! | `findings` | the output of defects in an image |
//! | `watch` | the figures of a mount, again and again |
//! | `limit` | the limit on printed contents |
//! | `open` | the arguments that the commands have in common, and opening an image |
//! | `whole` | comparing an image that was read as a whole with its digest in a registry |
//! | `cache` | the options of the cache of what is read from URLs, and its default folder |
//! | `names` | names from images, escaped for terminals and JSON |
//!
//! Names and contents come from untrusted images, so names are escaped on terminals, and output that may be long is
//! written in parts, not built in memory.

pub mod build;
pub mod build_args;
mod build_changes;
mod build_notes;
mod build_source;
mod build_summary;
mod build_xattrs;
mod cache;
pub mod cat;
pub mod check;
mod copy;
mod digest;
pub mod extract;
mod extract_total;
pub mod fakeroot;
mod file;
mod find;
mod findings;
mod further;
mod kernel;
mod layer_cache;
mod limit;
pub mod ls;
mod mount;
mod mount_advice;
mod mounts;
pub mod names;
pub mod open;
pub mod overview;
mod push;
mod region;
mod restart;
mod show;
mod stats;
mod tamper;
mod tar;
pub(crate) mod target;
mod unmount;
mod usage;
mod watch;
mod whole;
mod worker;

use crate::cli::list::with_columns;
use clap::Subcommand;
use pagefold_control::error::Result;

/// The commands on images.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Build an image from a directory, archive, image or layers (like mkfs.erofs)
    ///
    /// Reads every file of SOURCE once, compresses it on all CPUs, and writes an image that `image mount` and Linux
    /// mount. Names, contents, owners, modes, times, hard links, holes, devices, attributes and access lists are kept.
    ///
    /// The same files and options give the same image, whatever the number of threads: it has the newest time of SOURCE,
    /// or SOURCE_DATE_EPOCH, and a UUID of its contents.
    ///
    /// OUT gets its name when the image is complete: if the command fails or is interrupted, what was there before stays.
    /// A file that changes while it is read ends the command.
    ///
    /// The counterpart in erofs-utils is mkfs.erofs.
    #[command(override_usage = "pagefold image build [OPTIONS] <SOURCE>... <OUT>\n       \
        pagefold image build [OPTIONS] --layer-cache <DIR> <SOURCE>...")]
    Build(Box<build_args::BuildArgs>),
    /// Mount an image read-only on a directory (like erofsfuse, or mount -t erofs)
    ///
    /// Starts a server process and returns when the files can be read. The server uses no more memory for reading than
    /// --memory, and exits when the image is unmounted: by `image unmount`, or by umount(8). If it is
    /// killed, another one takes over, and readers only wait (Linux 6.9; `image stats` says whether).
    ///
    /// Only the user who mounts can access the files, also if that is root: other users get "Permission denied". With
    /// --allow-other all users can, and the modes, owners and access lists in the image decide what each can read.
    ///
    /// Nothing can be written. Set-user-id bits and device nodes in the image have no effect unless root uses --suid
    /// and --dev.
    ///
    /// Needs root, or the program fusermount3.
    ///
    /// The counterpart in erofs-utils is erofsfuse; that of --kernel is `mount -t erofs`.
    Mount(Box<mount::MountArgs>),
    /// Unmount images (like fusermount3 -u, or umount)
    #[command(alias = "umount")]
    Unmount(unmount::UnmountArgs),
    /// Replace the servers of mounted images, which stay mounted
    ///
    /// The new server runs the program of this command: after an upgrade, the one that is installed now. Programs that
    /// use the files notice nothing but a moment's wait. If the new server cannot take over, the former one serves on,
    /// and the message says why. A package can call it with --all after an upgrade.
    ///
    /// It also starts a server again that has died too often, so that the users of its files wait. Needs Linux 6.9.
    #[command(visible_alias = "upgrade")]
    Restart(restart::RestartArgs),
    /// List the mounted images
    ///
    /// Lists the mounts that have a server of this user, and cleans up after servers that died. Mounts of the kernel
    /// (--kernel) are not listed; `findmnt -t erofs` lists them.
    Mounts(mounts::MountsArgs),
    /// Show memory use, cache hits and latency of the server of a mounted image
    ///
    /// A mount of the kernel (--kernel) has no server, and no statistics.
    Stats(stats::StatsArgs),
    /// List the files in an image (like dump.erofs --ls)
    Ls(ls::LsArgs),
    /// Print the contents of files in an image (like dump.erofs --cat)
    ///
    /// Symbolic links are followed inside the image, and never lead out of it.
    Cat(cat::CatArgs),
    /// Show the features and statistics of an image, or how it stores a file
    ///
    /// Without PATH: the super block, the oldest Linux that can mount the image, statistics of all files, and what the
    /// bytes of the image are used for, with the files that take most. The metadata of all files is read for that. With
    /// PATH: the inode and the extents of that file.
    ///
    /// The counterpart in erofs-utils is dump.erofs: `-s` (super block), `-S` (statistics), and `-e --path` (extents).
    Show(show::ShowArgs),
    /// Extract an image into a directory (like fsck.erofs --extract)
    ///
    /// Creates files in DIR and nowhere else, whatever the image contains: symbolic links are created, but never
    /// followed. Files get their mode and times and, if the user is root, their owners. A file that cannot be read
    /// is skipped and reported, the others are extracted, and the exit code is 6. Ctrl-C ends the command early; the
    /// files that were created are then complete.
    ///
    /// The counterpart in erofs-utils is `fsck.erofs --extract=DIR`.
    Extract(extract::ExtractArgs),
    /// Write an image, or a part of it, as a tar archive
    ///
    /// The archive is in POSIX pax format, and goes to standard output unless -o names a file. It contains everything,
    /// including devices and privileged bits, which the program that extracts it can leave out. A file that cannot be
    /// read has zeroes or a hole in place of the missing contents; it is reported, and the exit code is 6.
    ///
    /// FILE gets its name when the archive is complete: if the command fails or is interrupted, what was there before
    /// stays.
    ///
    /// erofs-utils has no counterpart; `mkfs.erofs --tar` makes an image from an archive.
    Tar(tar::TarArgs),
    /// Check an image by reading and decoding everything in it (like fsck.erofs)
    ///
    /// Checks the super block and every inode, directory and attribute, and decodes the contents of every file. Errors
    /// do not end the check. Exit code 0: no errors (there may be warnings); 6: the image is damaged, or is none.
    /// Contents that are stored without compression have no checksum: only --digest finds a change of them.
    ///
    /// With --strict it also judges what readers ignore, and other readers or later versions may not: reserved bytes,
    /// padding, distances in indexes, feature bits. A finding that breaks one of the rules below ends with its name.
    ///
    /// The counterpart in erofs-utils is fsck.erofs.
    Check(check::CheckArgs),
    /// Copy an image from a server, a bucket or a registry into a file
    ///
    /// Reads all of the image in order and writes it to FILE, which gets its name when the copy is complete, verified and on
    /// disk: if the command fails or is interrupted, what was there before stays.
    ///
    /// The contents of an image in a registry are compared with the digest in its manifest, and with --digest every block
    /// is verified. The next copy after an interrupted one goes on where that stopped, if the cache has space for the image:
    /// what was read is there. Any object can be copied: the command does not look at the contents.
    Copy(copy::CopyArgs),
    /// Publish an image in a registry, from which mounts read it
    ///
    /// Sends the image as a layer of the type application/vnd.erofs.layer.v1, its configuration, and a manifest by the tag of
    /// TARGET, with the login of docker's configuration that reading it uses. Contents that the registry has are not
    /// sent again. The manifest comes last: if the command fails or is interrupted, the tag names what it named before.
    ///
    /// Prints the name of the image by the digest of its manifest, which never names another one.
    Push(push::PushArgs),
    /// Compute the digest of an image, by which all commands can verify it
    ///
    /// Prints the digest, and writes the Merkle tree to IMAGE.verity. With the digest and the tree, `image mount
    /// --digest` and the other commands verify every block before they decode it, wherever image and tree come from.
    /// The digest is the only thing that must be trusted.
    ///
    /// Digest, tree and descriptor are those of fs-verity with SHA-256 and blocks of 4096 bytes, which Linux and `fsverity
    /// digest` compute too. Any file has a digest: the command does not look at the contents.
    Digest(digest::DigestArgs),
}

/// Adds the names of columns to the help of the commands with a list, and the rules to that of `check`.
pub fn with_tables(image: clap::Command) -> clap::Command {
    image
        .mut_subcommand("mounts", |mounts| with_columns(mounts, &mounts::COLUMNS))
        .mut_subcommand("check", |check| check.after_long_help(check::rules_help()))
}

/// Runs the command.
pub fn run(command: &ImageCommand) -> Result<()> {
    match command {
        ImageCommand::Build(args) => build::run(args),
        ImageCommand::Mount(args) => mount::run(args),
        ImageCommand::Unmount(args) => unmount::run(args),
        ImageCommand::Restart(args) => restart::run(args),
        ImageCommand::Mounts(args) => mounts::run(args),
        ImageCommand::Stats(args) => stats::run(args),
        ImageCommand::Ls(args) => ls::run(args),
        ImageCommand::Cat(args) => cat::run(args),
        ImageCommand::Show(args) => show::run(args),
        ImageCommand::Extract(args) => extract::run(args),
        ImageCommand::Tar(args) => tar::run(args),
        ImageCommand::Check(args) => check::run(args),
        ImageCommand::Copy(args) => copy::run(args),
        ImageCommand::Push(args) => push::run(args),
        ImageCommand::Digest(args) => digest::run(args),
    }
}
