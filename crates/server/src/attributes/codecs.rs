//! Attributes of the codecs: their algorithms and parameters. All are fixed as soon as the disk has a size.

use super::attribute::{Attribute, AttributeTarget, When};
use super::syntax::{self, Invalid, Syntax};
use super::values::{self, Parameters, Value};
use crate::disk::{self, Disk, PRIORITY_COUNT, Setup};
use crate::log;
use pagefold_control::config::CodecConfig;
use pagefold_control::error::{CliError, Exit, Result};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Longest name of an algorithm in the kernel, with the byte that ends it there.
const NAME_LEN_MAX: usize = 128;
/// Largest dictionary, bytes.
const DICTIONARY_LEN_MAX: u64 = 1 << 20;

pub(super) static TABLE: &[Attribute] = &[
    Attribute::new("codec", "name", "compression algorithm; comp_algorithm sets it")
        .shown(|d| Ok(primary(d).0)),
    Attribute::new(
        "level",
        "number",
        "compression level, or 'none' if the codec has no levels; algorithm_params sets it",
    )
    .shown(|d| Ok(primary(d).1.map_or("none".to_string(), |l| l.to_string()))),
    Attribute::new(
        "comp_algorithm",
        "names",
        "the list of codecs, the primary one in brackets, as zram prints it. Takes a name, before the \
         disk has a size",
    )
    .file(0o644)
    .when(When::BeforeSize)
    .shown(|d| Ok(disk::codec_list(&primary(d).0)))
    .changed(algorithm, choose),
    Attribute::new(
        "recomp_algorithm",
        "names",
        "the codecs that pages are recompressed with: for each priority the list of codecs, the chosen \
         one in brackets, as zram prints it. Takes algo=NAME priority=1 to 3 (1 if left out), before \
         the disk has a size",
    )
    .file(0o644)
    .when(When::BeforeSize)
    .shown(|d| Ok(further(d)))
    .changed(further_algorithm, choose),
    Attribute::new(
        "algorithm_params",
        "",
        "parameters of a codec. Takes priority=0 to 3 (0 if left out) or algo=NAME, and level=NUMBER, \
         dict=PATH, deflate.winbits=NUMBER; parameters that are left out stay as they are. \
         recomp_algorithm may choose the codec of a priority later. Before the disk has a size, which \
         is refused if the codec does not take them",
    )
    .file(0o200)
    .when(When::BeforeSize)
    .changed(parameters, |t, v| match v {
        Value::Parameters(parameters) => {
            let t = &*t;
            t.disk().change_setup(|setup| set_parameters(setup, &parameters, t))
        }
        _ => Ok(()),
    }),
    Attribute::new(
        "max_comp_streams",
        "number",
        "the number of compression streams: one for each CPU. Takes any number, which has no effect, as \
         in zram until Linux 6.15",
    )
    .file(0o644)
    .shown(|_| Ok(pagefold_sys::cpu::count().to_string()))
    .changed(values::number, |_, _| Ok(())),
];

/// Name and level of the primary codec. The level of a disk without a size is the one that it gets.
fn primary(disk: &Disk) -> (String, Option<i32>) {
    match disk.running() {
        Some(live) => {
            let (name, level) = live.store.codec();
            (name.to_string(), level)
        }
        None => {
            let CodecConfig { name, level, .. } = disk.setup().primary();
            let level = level.or_else(|| disk::default_level(&name));
            (name, level)
        }
    }
}

fn further(disk: &Disk) -> String {
    let setup = disk.setup();
    let line = |priority: usize| {
        let codec = setup.codec(priority)?;
        Some(format!("#{priority}: {}", disk::codec_list(&codec.name)))
    };
    (1..PRIORITY_COUNT).filter_map(line).collect::<Vec<_>>().join("\n")
}

fn choose(target: &mut dyn AttributeTarget, value: Value) -> Result<()> {
    match value {
        Value::Algorithm { priority, name } => target.disk().change_setup(|setup| {
            setup.choose(priority, &name);
            Ok(())
        }),
        _ => Ok(()),
    }
}

fn algorithm(text: &str, _: Syntax) -> Result<Value, Invalid> {
    check_len(text)?;
    Ok(Value::Algorithm { priority: 0, name: known(text.strip_suffix('\n').unwrap_or(text))? })
}

fn check_len(name: &str) -> Result<(), Invalid> {
    if name.len() < NAME_LEN_MAX {
        return Ok(());
    }
    Err(Invalid { errno: libc::E2BIG, why: "the name is too long (E2BIG)".into() })
}

fn known(name: &str) -> Result<String, Invalid> {
    disk::check_codec(&disk::plain_codec(name)).map_err(|e| Invalid::from(e.message))?;
    Ok(name.to_string())
}

/// The pairs of a text. A key without a value is an error.
fn pairs<'t>(text: &'t str) -> Result<Vec<(&'t str, &'t str)>, Invalid> {
    let pair = |(key, value): (_, Option<&'t str>)| match value {
        Some(value) if !value.is_empty() => Ok((key, value)),
        _ => Err(Invalid::from(format!("{key:?} is not of the form KEY=VALUE"))),
    };
    syntax::words(text).map(pair).collect()
}

/// Refuses an unknown key on a command line. The kernel ignores it.
fn unknown(attribute: &str, key: &str, syntax: Syntax) -> Result<(), Invalid> {
    match syntax {
        Syntax::Command => Err(format!("the key {key:?} is unknown").into()),
        Syntax::Kernel => {
            log::warning(format_args!("{attribute}: the key {key:?} is unknown, and was ignored"));
            Ok(())
        }
    }
}

fn integer(text: &str) -> Result<i32, Invalid> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) if digits.starts_with('+') => return Err("expected a number".into()),
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let greatest = if sign < 0 { 1 << 31 } else { i32::MAX as u64 };
    Ok((sign * syntax::kstrtou(digits, 10, greatest)? as i64) as i32)
}

fn further_algorithm(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    let (mut name, mut priority) = (None, 1);
    for (key, value) in pairs(text)? {
        match key {
            "algo" => name = Some(value),
            "priority" => priority = integer(value)?,
            key => unknown("recomp_algorithm", key, syntax)?,
        }
    }
    let name = name.ok_or("expected algo=NAME, and a priority")?;
    match usize::try_from(priority) {
        Ok(priority @ 1..PRIORITY_COUNT) => {
            check_len(name)?;
            Ok(Value::Algorithm { priority, name: known(name)? })
        }
        _ => Err("the priority is 1, 2 or 3".into()),
    }
}

fn parameters(text: &str, syntax: Syntax) -> Result<Value, Invalid> {
    let mut given = Parameters::default();
    for (key, value) in pairs(text)? {
        match key {
            "priority" => given.priority = Some(integer(value)?),
            "algo" => given.algorithm = Some(value.to_string()),
            "level" => given.level = Some(integer(value)?),
            "dict" => given.dictionary = Some(value.into()),
            "deflate.winbits" => given.window_bits = Some(integer(value)?),
            key => unknown("algorithm_params", key, syntax)?,
        }
    }
    Ok(Value::Parameters(given))
}

/// Sets the parameters that are given, and leaves the others. (The kernel's forgets these.)
pub(super) fn set_parameters(
    setup: &mut Setup,
    given: &Parameters,
    target: &dyn AttributeTarget,
) -> Result<()> {
    let invalid =
        |why: String| CliError::usage(format!("algorithm_params: {why} (EINVAL)")).with_errno(libc::EINVAL);
    let priority = match given.priority.map(usize::try_from) {
        None => None,
        Some(Ok(priority @ 0..PRIORITY_COUNT)) => Some(priority),
        Some(_) => return Err(invalid("the priority is 0, 1, 2 or 3".into())),
    };
    let priority = match &given.algorithm {
        None => priority.unwrap_or(0),
        Some(name) => {
            let found = setup.priorities_of(name).find(|p| priority.is_none_or(|wanted| wanted == *p));
            let why = || format!("{name:?} is no codec of this disk, or not that of the priority");
            found.ok_or_else(|| invalid(why()))?
        }
    };
    let dictionary = given.dictionary.as_deref().map(|path| read_dictionary(path, target)).transpose()?;
    if let Some(codec) = setup.parameters_mut(priority) {
        codec.level = given.level.or(codec.level);
        codec.window_bits = given.window_bits.or(codec.window_bits);
        codec.dictionary = dictionary.or(codec.dictionary.take());
    }
    Ok(())
}

/// The path of the dictionary that a text for `algorithm_params` names, if it names one.
pub(super) fn dictionary_of(text: &str) -> Option<&Path> {
    let named = syntax::words(text).filter(|(key, _)| *key == "dict").filter_map(|(_, value)| value);
    named.filter(|path| !path.is_empty()).last().map(Path::new)
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> CliError {
    let message = format!("algorithm_params: reading the dictionary '{}': {why} (EINVAL)", path.display());
    CliError::new(Exit::Failed, message).with_errno(libc::EINVAL)
}

/// Opens a dictionary, for a command.
pub(super) fn open_dictionary(path: &Path) -> Result<(File, PathBuf)> {
    if !path.is_absolute() {
        return Err(unreadable(path, &"its path must be absolute"));
    }
    // A pipe would have to wait for its other end.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|e| unreadable(path, &e))?;
    match file.metadata().map_err(|e| unreadable(path, &e))?.is_file() {
        true => Ok((file, path.into())),
        false => Err(unreadable(path, &"it is no regular file")),
    }
}

fn read_dictionary(path: &Path, target: &dyn AttributeTarget) -> Result<Vec<u8>> {
    let failed = |e: &dyn std::fmt::Display| unreadable(path, e);
    let (file, _) = target.named_file(path)?;
    // The lock of the disk is held, and a pipe would have to wait for its other end.
    if !file.metadata().map_err(|e| failed(&e))?.is_file() {
        return Err(failed(&"it is no regular file"));
    }
    // All descriptors of the file have one position.
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    while (bytes.len() as u64) <= DICTIONARY_LEN_MAX {
        match file.read_at(&mut piece, bytes.len() as u64).map_err(|e| failed(&e))? {
            0 => break,
            read => bytes.extend_from_slice(&piece[..read.min(piece.len())]),
        }
    }
    match bytes.len() as u64 {
        0 => Err(failed(&"it is empty")),
        1..=DICTIONARY_LEN_MAX => Ok(bytes),
        _ => Err(failed(&"it is larger than 1 MiB")),
    }
}
