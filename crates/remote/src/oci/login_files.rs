//! The files in which docker, podman, skopeo and buildah keep logins for registries, in the order in which those tools read
//! them.
//!
//! The first file with a login for the repository counts. A file that does not exist has none.

use super::docker_config::{Login, login_in};
use crate::environment::{Environment, SettingsError, read_settings};
use pagefold_sys::rundir;
use std::path::PathBuf;

/// The login for a repository of a registry; `None` if there is none: then `notes` gets a sentence for each program that a
/// file names and that is not installed. `registry` is the host, and perhaps the port.
pub fn login(
    registry: &str,
    repository: &str,
    env: Environment<'_>,
    notes: &mut Vec<String>,
) -> Result<Option<Login>, SettingsError> {
    let mut missing = Vec::new();
    for path in paths(env) {
        let Some(text) = read_settings(&path)? else { continue };
        let found = login_in(&path, &text, [registry, repository], &mut missing)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    notes.extend(missing.into_iter().map(|what| format!("{what}: there is no login")));
    Ok(None)
}

/// The files, which need not exist.
fn paths(env: Environment<'_>) -> Vec<PathBuf> {
    // One that the user names is the only one.
    if let Some(path) = env("REGISTRY_AUTH_FILE") {
        return vec![path.into()];
    }
    let home = env("HOME").map(PathBuf::from);
    let in_home = |path: &str| home.as_ref().map(|home| home.join(path));
    let runtime = match env("XDG_RUNTIME_DIR") {
        Some(folder) => PathBuf::from(folder),
        // Where podman keeps those of sessions without such a folder.
        None => PathBuf::from(format!("/run/containers/{}", rundir::effective_uid())),
    };
    let runtime = match env("XDG_RUNTIME_DIR") {
        Some(_) => runtime.join("containers/auth.json"),
        None => runtime.join("auth.json"),
    };
    let config = env("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| in_home(".config"));
    let docker = env("DOCKER_CONFIG").map(PathBuf::from).or_else(|| in_home(".docker"));
    let config = config.map(|folder| folder.join("containers/auth.json"));
    let docker = docker.map(|folder| folder.join("config.json"));
    std::iter::once(runtime).chain(config).chain(docker).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secret;
    use std::collections::BTreeMap;

    #[test]
    fn the_first_file_with_a_login_counts() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let env: BTreeMap<&str, String> = [("XDG_RUNTIME_DIR", at("run")), ("HOME", at("home"))].into();
        let found = |env: &BTreeMap<&str, String>| {
            let mut notes = Vec::new();
            let login = login("a.io", "me/app", &|name| env.get(name).cloned(), &mut notes).unwrap();
            let user = login.map(|login| match login {
                Login::Password { user, password: Secret(_) } => user,
                other => panic!("{other:?}"),
            });
            (user, notes)
        };
        let write = |name: &str, config: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, config).unwrap();
        };
        let of = |user: &str| {
            format!("{{\"auths\": {{\"a.io\": {{\"username\": \"{user}\", \"password\": \"p\"}}}}}}")
        };
        assert_eq!(found(&env), (None, vec![]));
        // From the last to the first.
        for name in
            ["home/.docker/config.json", "home/.config/containers/auth.json", "run/containers/auth.json"]
        {
            write(name, &of(name));
            assert_eq!(found(&env), (Some(name.to_string()), vec![]));
        }
        write("run/containers/auth.json", "{\"auths\": {}}");
        assert_eq!(found(&env).0.as_deref(), Some("home/.config/containers/auth.json"));
        write("xdg/containers/auth.json", &of("xdg"));
        let mut other = env.clone();
        other.insert("XDG_CONFIG_HOME", at("xdg"));
        assert_eq!(found(&other).0.as_deref(), Some("xdg"));
        write("home/.config/containers/auth.json", "");
        write("docker/config.json", &of("docker"));
        let mut other = env.clone();
        other.insert("DOCKER_CONFIG", at("docker"));
        assert_eq!(found(&other).0.as_deref(), Some("docker"));
        // A file that the user names is the only one.
        other.insert("REGISTRY_AUTH_FILE", at("missing.json"));
        assert_eq!(found(&other), (None, vec![]));
        // A program that is missing does not hide the files after its own; without a login a note says so.
        write("run/containers/auth.json", "{\"credsStore\": \"no-such-program-of-pagefold\"}");
        assert_eq!(found(&env), (Some("home/.docker/config.json".to_string()), vec![]));
        write("home/.docker/config.json", "{}");
        let (user, notes) = found(&env);
        assert!(user.is_none() && notes.len() == 1 && notes[0].contains("is not installed"), "{notes:?}");
    }
}
