//! The proxy of the environment: whether its variable can be used, and what its refusals mean.
//!
//! The HTTP library reads the variables itself and passes over one that is no URL, so that requests would go out without a
//! proxy although the user names one. It also does not tell a refusal of a proxy from an outage.

use crate::RemoteError;
use crate::answer::AttemptError;
use crate::environment::Environment;

/// The variables in the order in which the HTTP library reads them.
const VARIABLES: [&str; 6] =
    ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];

/// Fails if the first variable that is set does not name a proxy. The message does not have its value, which may have a
/// password.
pub(crate) fn check(env: Environment<'_>) -> Result<(), RemoteError> {
    let first = VARIABLES.into_iter().find_map(|name| env(name).map(|value| (name, value)));
    match first {
        Some((name, value)) if ureq::Proxy::new(&value).is_err() => Err(RemoteError::SetUp {
            what: format!("{name} does not name a proxy: set it to http://HOST:PORT, or unset it"),
        }),
        _ => Ok(()),
    }
}

/// The failure of a request that a proxy did not pass on, for the reason that the HTTP library gives.
pub(crate) fn failure(reason: &str) -> AttemptError {
    let connection = |what: String| RemoteError::Connection { what };
    match status(reason) {
        Some(407) => AttemptError::Permanent(connection(
            "the proxy wants a user and a password (status 407): write them into the variable that names it, such as \
             HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT"
                .to_string(),
        )),
        Some(status @ (400..=407 | 409..=428 | 430..=499 | 501 | 505)) => {
            AttemptError::Permanent(connection(format!(
                "the proxy refuses to connect to this server (status {status}): NO_PROXY names the servers that are asked \
                 without it"
            )))
        }
        Some(status) => {
            AttemptError::transient(connection(format!("the proxy answers with status {status}")))
        }
        None => AttemptError::transient(connection(format!("the proxy: {reason}"))),
    }
}

/// The status of a proxy's answer; `None` if there was none.
fn status(reason: &str) -> Option<u16> {
    let (_, answer) = reason.rsplit_once("responded ")?;
    answer.split('/').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_names_no_proxy_is_an_error_without_its_value() {
        let with = |set: &'static [(&'static str, &'static str)]| {
            check(&move |name: &str| {
                set.iter().find(|(found, _)| *found == name).map(|(_, value)| value.to_string())
            })
        };
        assert_eq!(with(&[]), Ok(()));
        assert_eq!(with(&[("HTTPS_PROXY", "http://me:secret@proxy:3128")]), Ok(()));
        assert_eq!(with(&[("ALL_PROXY", "proxy:3128"), ("HTTP_PROXY", "garbage://")]), Ok(()));
        for name in VARIABLES {
            let error = check(&|asked: &str| (asked == name).then(|| "secret://".to_string())).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(name) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn refusals_of_a_proxy_are_final_and_outages_are_not() {
        for (status, is_final) in
            [(407, true), (403, true), (501, true), (408, false), (429, false), (502, false)]
        {
            let reason = format!("proxy server responded {status}/{status}");
            let failure = failure(&reason);
            assert_eq!(matches!(failure, AttemptError::Permanent(_)), is_final, "{status}");
        }
        assert!(matches!(failure("proxy server did not respond"), AttemptError::Transient { .. }));
    }
}
