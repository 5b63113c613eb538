//! The login for a registry, from docker's configuration: in the file, or from a program that it names.
//!
//! A command reads it and runs the program. The server of a mount gets the login, and fetches tokens with it.

use crate::environment::{Environment, SettingsError, read_bounded};
use crate::{Secret, program};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// The key of the hub in configurations.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";
/// The user of a program's answer whose password is an identity token.
const TOKEN_USER: &str = "<token>";

/// A login.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Login {
    /// User and password.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: Secret,
    },
    /// A token that is exchanged for others.
    IdentityToken(Secret),
    /// A token that registries take as it is.
    RegistryToken(Secret),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    auths: BTreeMap<String, Auth>,
    #[serde(rename = "credsStore")]
    creds_store: Option<String>,
    #[serde(rename = "credHelpers")]
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    auth: Option<Secret>,
    username: Option<String>,
    password: Option<Secret>,
    identitytoken: Option<Secret>,
    registrytoken: Option<Secret>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ProgramOutput {
    username: String,
    secret: Secret,
}

/// The login for a registry; `None` if there is none. `registry` is the host, and perhaps the port.
pub fn login(registry: &str, env: Environment<'_>) -> Result<Option<Login>, SettingsError> {
    let Some(path) = path(env) else { return Ok(None) };
    let wrong = |why: String| SettingsError::Value { name: format!("'{}'", path.display()), why };
    let text = read_bounded(&path).map_err(|e| wrong(format!("cannot be read: {e}")))?;
    let Some(text) = text else { return Ok(None) };
    // The error of the parser could quote a secret.
    let config: Config = serde_json::from_str(&text).map_err(|e| {
        wrong(format!("is not docker's configuration: line {}, column {}", e.line(), e.column()))
    })?;
    let key = if registry == "docker.io" { DOCKER_HUB_KEY } else { registry };
    let helper = config.cred_helpers.iter().find(|(key, _)| names(key, registry)).map(|(_, name)| name);
    if let Some(name) = helper.or(config.creds_store.as_ref()).filter(|name| !name.is_empty()) {
        let from_program = from_program(name, key).map_err(|why| {
            let what = format!("the program docker-credential-{name} for the registry '{registry}'");
            SettingsError::Value { name: what, why }
        })?;
        if from_program.is_some() {
            return checked(from_program, &wrong);
        }
    }
    let auth = config.auths.into_iter().find(|(key, _)| names(key, registry)).map(|(_, auth)| auth);
    match auth {
        Some(auth) => {
            checked(of_file(auth).map_err(|why| wrong(format!("for '{registry}': {why}")))?, &wrong)
        }
        None => Ok(None),
    }
}

/// The file, which need not exist.
fn path(env: Environment<'_>) -> Option<PathBuf> {
    let of_docker = || env("DOCKER_CONFIG").map(|folder| PathBuf::from(folder).join("config.json"));
    let of_home = || env("HOME").map(|home| PathBuf::from(home).join(".docker/config.json"));
    env("REGISTRY_AUTH_FILE").map(PathBuf::from).or_else(of_docker).or_else(of_home)
}

/// Whether a key of the configuration, which may be a URL, is for the registry.
fn names(key: &str, registry: &str) -> bool {
    let host = key.split_once("://").map_or(key, |(_, rest)| rest).split('/').next().unwrap_or_default();
    match registry {
        "docker.io" => ["docker.io", "index.docker.io", "registry-1.docker.io"].contains(&host),
        _ => host.eq_ignore_ascii_case(registry),
    }
}

fn of_file(auth: Auth) -> Result<Option<Login>, String> {
    let is_some = |secret: &Secret| !secret.0.is_empty();
    if let Some(token) = auth.registrytoken.filter(is_some) {
        return Ok(Some(Login::RegistryToken(token)));
    }
    if let Some(token) = auth.identitytoken.filter(is_some) {
        return Ok(Some(Login::IdentityToken(token)));
    }
    if let Some(Secret(encoded)) = auth.auth.filter(is_some) {
        let encoded = encoded.trim();
        let decoded = STANDARD.decode(encoded).or_else(|_| STANDARD_NO_PAD.decode(encoded));
        let decoded = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        // Docker ends some of them with a zero byte.
        let decoded = decoded.as_deref().map(|text| text.trim_end_matches('\0'));
        return match decoded.and_then(|text| text.split_once(':')) {
            Some((user, password)) => Ok(Some(of_user(user.to_string(), Secret(password.to_string())))),
            None => Err("its auth is not the base64 of user:password".to_string()),
        };
    }
    Ok(auth.username.zip(auth.password).map(|(user, password)| of_user(user, password)))
}

fn of_user(user: String, password: Secret) -> Login {
    match user == TOKEN_USER {
        true => Login::IdentityToken(password),
        false => Login::Password { user, password },
    }
}

/// Refuses a login that would end a header.
fn checked(
    login: Option<Login>,
    wrong: &dyn Fn(String) -> SettingsError,
) -> Result<Option<Login>, SettingsError> {
    let is_good = match &login {
        Some(Login::RegistryToken(token)) => token.0.bytes().all(|b| b.is_ascii_graphic()),
        Some(Login::Password { user, .. }) => !user.contains(':'),
        Some(Login::IdentityToken(_)) | None => true,
    };
    match is_good {
        true => Ok(login),
        false => Err(wrong("has a login with characters that logins do not have".to_string())),
    }
}

/// Asks a program; `None` if it has no login for this key.
fn from_program(name: &str, key: &str) -> Result<Option<Login>, String> {
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if !is_name {
        return Err("is refused: its name has other characters than names of programs".to_string());
    }
    let mut command = Command::new(format!("docker-credential-{name}"));
    // Its answer, and its complaint that there is nothing, are on standard output.
    command.arg("get");
    of_output(program::run(command, key.as_bytes(), program::TIME_LIMIT))
}

/// The login that a program printed.
fn of_output(output: Result<Vec<u8>, String>) -> Result<Option<Login>, String> {
    let output = match output {
        Ok(output) => output,
        // All of them end with status 1 if they know nothing, and nothing else tells that from a failure.
        Err(why) if why.ends_with("exit status: 1") => return Ok(None),
        Err(why) => return Err(format!("cannot be used: {why}")),
    };
    let output: ProgramOutput = serde_json::from_slice(&output)
        .map_err(|_| "cannot be used: its output is not the JSON of a login".to_string())?;
    Ok(Some(of_user(output.username, output.secret)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn with(config: &str, registry: &str) -> Result<Option<Login>, SettingsError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let path = folder.path().display().to_string();
        login(registry, &|name| (name == "DOCKER_CONFIG").then(|| path.clone()))
    }

    fn password(user: &str, password: &str) -> Option<Login> {
        Some(Login::Password { user: user.into(), password: Secret(password.into()) })
    }

    #[test]
    fn logins_of_the_file_are_found_by_host() {
        let config = r#"{"auths": {
            "https://index.docker.io/v1/": {"auth": "aHViOmE6Yg=="},
            "ghcr.io": {"auth": "bWU6c2VjcmV0"},
            "https://localhost:5000": {"username": "u", "password": "p"},
            "id.example.org": {"auth": "bWU6c2VjcmV0", "identitytoken": "i"},
            "t.example.org": {"registrytoken": "r"},
            "empty.example.org": {}}, "HttpHeaders": {"x": "y"}}"#;
        let of = |registry: &str| with(config, registry).unwrap();
        assert_eq!(of("docker.io"), password("hub", "a:b"));
        assert_eq!(of("ghcr.io"), password("me", "secret"));
        assert_eq!(of("localhost:5000"), password("u", "p"));
        assert_eq!(of("id.example.org"), Some(Login::IdentityToken(Secret("i".into()))));
        assert_eq!(of("t.example.org"), Some(Login::RegistryToken(Secret("r".into()))));
        assert_eq!((of("empty.example.org"), of("localhost"), of("other")), (None, None, None));
        assert_eq!(login("ghcr.io", &|_| None), Ok(None));
        let nowhere = |name: &str| (name == "HOME").then(|| "/nonexistent".to_string());
        assert_eq!(login("ghcr.io", &nowhere), Ok(None));
    }

    #[test]
    fn files_that_are_none_are_errors_without_their_contents() {
        for config in [
            r#"{"auths": {"host": {"auth": "hidden"}}}"#,
            r#"{"auths": "hidden"}"#,
            r#"{"auths": {"host": {"registrytoken": "hidden\r\nX: y"}}}"#,
            r#"{"credsStore": "../hidden/x"}"#,
            r#"{"credsStore": "no-such-program-of-pagefold"}"#,
        ] {
            let text = with(config, "host").unwrap_err().to_string();
            assert!(!text.contains("hidden\r") && !text.contains("\"hidden"), "{config}: {text}");
        }
    }

    /// A program in a folder of the search path, which this test changes for nobody else: it is asked by its path.
    #[test]
    fn programs_are_asked_for_logins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("docker-credential-test");
        let script = "#!/bin/sh\nread key\ncase $key in\nghcr.io) echo '{\"ServerURL\":\"x\",\"Username\":\"me\",\
            \"Secret\":\"s\"}';;\ntoken) echo '{\"Username\":\"<token>\",\"Secret\":\"t\"}';;\n\
            bad) echo no;;\n*) echo 'credentials not found'; exit 1;;\nesac\n";
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let ask = |key: &str| {
            let output =
                program::run(Command::new(&path), format!("{key}\n").as_bytes(), program::TIME_LIMIT);
            of_output(output)
        };
        assert_eq!(ask("ghcr.io"), Ok(password("me", "s")));
        assert_eq!(ask("token"), Ok(Some(Login::IdentityToken(Secret("t".into())))));
        assert_eq!(ask("other"), Ok(None));
        assert!(ask("bad").unwrap_err().contains("not the JSON of a login"));
    }
}
