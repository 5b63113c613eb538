//! Tokens of OAuth 2.0, which stores take in the header `Authorization`.
//!
//! A token comes from a service elsewhere, in exchange for something that the user has, or from a service of the machine.
//! [`Tokens`] keeps them. Registries have another protocol (`oci/registry.rs`).

use crate::access::{Reaction, SignedRequest};
use crate::answer::AttemptError;
use crate::encoding::form;
use crate::headers::number;
use crate::renewed::{Expiring, Renewed};
use crate::retry::Deadline;
use crate::small::{Answer, MAX_CREDENTIALS_BYTES, Method, SmallClient};
use crate::{RemoteError, Secret, Url};
use serde_json::Value;
use std::time::{Duration, SystemTime};

/// The longest time of a request to a service of the machine, which may be busy. The time to connect is shorter
/// (`small.rs`).
const NEAR_LIMIT: Duration = Duration::from_secs(10);
/// For so long a store that refuses a request without a token is believed that the machine has no identity. Then the
/// machine is asked again: it may have been too busy to answer.
const NO_IDENTITY_LIFE: Duration = Duration::from_secs(30);
/// The life of a token that does not name one, seconds, and the longest.
const DEFAULT_LIFE_S: u64 = 300;
const MAX_LIFE_S: u64 = 86_400;

/// A header `Authorization`; `None` where the machine has no identity.
pub(crate) type Bearer = Expiring<Option<Secret>>;

/// The token for the requests for one object, and the service that it comes from, if there is one.
pub(crate) struct Tokens {
    service: Option<TokenService>,
    bearer: Renewed<Option<Secret>>,
}

impl Tokens {
    /// Tokens of a service; without one requests have no token.
    pub(crate) fn new(service: Option<TokenService>) -> Self {
        Tokens { service, bearer: Renewed::new() }
    }

    /// The header `Authorization`, if there is one, and its generation. `fetch` asks the service for a new one.
    pub(crate) fn get(
        &self,
        deadline: &Deadline,
        fetch: impl FnOnce(&TokenService) -> Result<Bearer, AttemptError>,
    ) -> Result<(Option<Secret>, u64), AttemptError> {
        self.bearer.get(deadline, || self.service.as_ref().map_or_else(|| Ok(Expiring::none()), fetch))
    }

    /// Reacts to a refusal with `status`: the next [`get`](Self::get) fetches another token if that may help; otherwise
    /// statuses of `denials` are failures with `error`.
    ///
    /// The token of a mount's beginning may have been withdrawn; and a machine that had none may have one now: stores refuse
    /// requests without a token with a status of `hidden`, which also hides what only some may see.
    pub(crate) fn react(
        &self,
        request: &SignedRequest,
        status: u16,
        [hidden, denials]: [&[u16]; 2],
        error: impl FnOnce() -> RemoteError,
    ) -> Reaction {
        let may_help = match (status, request.has_authorization()) {
            _ if self.service.is_none() => false,
            (401, true) => {
                self.bearer.refuse(request.generation);
                true
            }
            (_, true) => false,
            (status, false) => {
                hidden.contains(&status) && self.bearer.refuse_old(request.generation, NO_IDENTITY_LIFE)
            }
        };
        match () {
            () if may_help => Reaction::Renew(error()),
            () if denials.contains(&status) => Reaction::Fail(error()),
            () => Reaction::Default,
        }
    }
}

/// A service of tokens.
pub(crate) struct TokenService {
    client: SmallClient,
    url: Url,
}

impl TokenService {
    /// A service of the machine, which no proxy reaches.
    pub(crate) fn near(timeout: Duration, url: Url) -> Result<Self, RemoteError> {
        Ok(TokenService { client: SmallClient::near(timeout, &url, NEAR_LIMIT)?, url })
    }

    /// A service elsewhere, through the proxy of the environment.
    pub(crate) fn far(timeout: Duration, url: Url) -> Result<Self, RemoteError> {
        Ok(TokenService { client: SmallClient::far(timeout, &url, MAX_CREDENTIALS_BYTES)?, url })
    }

    /// Sends a form, and returns the token of the answer. `whose` names the service in messages.
    pub(crate) fn exchange(
        &self,
        fields: &[(&str, &str)],
        whose: &str,
        deadline: &Deadline,
    ) -> Result<Bearer, AttemptError> {
        token(self.client.ask(Method::Post(&form(fields)), &self.url, &[], deadline)?, whose)
    }

    /// Asks the machine. No token if it has no such service, or no identity; an error instead if the user's environment
    /// names the service (`is_named`), because then there is one.
    pub(crate) fn of_machine(
        &self,
        header: (&'static str, Secret),
        is_named: bool,
        whose: &str,
        deadline: &Deadline,
    ) -> Result<Bearer, AttemptError> {
        let answer = self.client.ask(Method::Get, &self.url, &[header], deadline);
        self.client.judge(answer.and_then(|answer| token(answer, whose)), is_named)
    }
}

/// The token of an answer, as a header.
fn token(answer: Answer, whose: &str) -> Result<Bearer, AttemptError> {
    if matches!(answer.head.status, 400 | 401 | 403) {
        let reason = error_code(&answer.body).map(|code| format!(" ({code})")).unwrap_or_default();
        let what = format!("{whose} answers with status {}{reason}", answer.head.status);
        return Err(AttemptError::Permanent(RemoteError::Denied { status: answer.head.status, what }));
    }
    bearer(&answer.expect_ok(whose)?, &["access_token"], DEFAULT_LIFE_S, whose)
}

/// The token of an answer in JSON, in the first of these fields that it has, as a header. It is valid for `life_s` seconds if
/// the answer does not say how long.
pub(crate) fn bearer(body: &[u8], fields: &[&str], life_s: u64, whose: &str) -> Result<Bearer, AttemptError> {
    let refused = || AttemptError::refused(format!("{whose} sends no JSON with a token"));
    let answer: Value = serde_json::from_slice(body).map_err(|_| refused())?;
    // Some services send an empty field beside the other one.
    let mut texts = fields.iter().filter_map(|field| answer.get(field)?.as_str());
    let token = texts.find(|text| !text.is_empty()).ok_or_else(refused)?;
    let own_life_s = match answer.get("expires_in") {
        Some(Value::String(text)) => number(text),
        Some(number) => number.as_u64(),
        None => None,
    };
    // Other characters would end the header.
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(refused());
    }
    let life = Duration::from_secs(own_life_s.unwrap_or(life_s).clamp(1, MAX_LIFE_S));
    let value = Some(Secret(format!("Bearer {token}")));
    Ok(Expiring { value, valid_until: Some(SystemTime::now() + life) })
}

/// The code of a refusal, if it is a word.
fn error_code(body: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let code = answer.get("error")?.as_str()?;
    let is_word = (1..=64).contains(&code.len())
        && code.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    is_word.then(|| code.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Head;
    use std::io::{Read, Write};

    fn answer(status: u16, body: &str) -> Result<Bearer, AttemptError> {
        let body = body.as_bytes().to_vec();
        token(Answer { head: Head { status, ..Head::default() }, body }, "the service")
    }

    #[test]
    fn tokens_of_answers_are_headers_and_other_answers_are_errors() {
        for (life, seconds) in
            [("3599", 3599), ("\"3599\"", 3599), ("\"x\"", 300), ("0", 1), ("999999999", 86_400)]
        {
            let bearer =
                answer(200, &format!("{{\"access_token\": \"abc\", \"expires_in\": {life}}}")).unwrap();
            assert_eq!(bearer.value, Some(Secret("Bearer abc".into())));
            let left = bearer.valid_until.unwrap().duration_since(SystemTime::now()).unwrap_or_default();
            assert!(left.as_secs() <= seconds && left.as_secs() + 5 >= seconds, "{life}: {left:?}");
        }
        let both =
            bearer(b"{\"token\": \"\", \"access_token\": \"abc\"}", &["token", "access_token"], 60, "x");
        assert_eq!(both.unwrap().value, Some(Secret("Bearer abc".into())));
        for body in [
            "",
            "[]",
            "{}",
            "{\"access_token\": \"\"}",
            "{\"access_token\": \"a\\r\\nb\"}",
            "{\"access_token\": 1}",
        ] {
            assert!(matches!(answer(200, body), Err(AttemptError::Permanent(_))), "{body}");
        }
        let refused =
            answer(400, "{\"error\": \"invalid_grant\", \"error_description\": \"\\u001b[2J\"}").unwrap_err();
        let AttemptError::Permanent(error) = refused else { panic!("it is permanent") };
        assert_eq!(error.to_string(), "the service answers with status 400 (invalid_grant)");
        assert!(matches!(answer(503, ""), Err(AttemptError::Transient { .. })));
        assert!(matches!(answer(404, ""), Err(AttemptError::Permanent(_))));
    }

    /// A service of the machine that answers one request with a token, after this time.
    fn service(late: Duration) -> Url {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = Url::parse(&format!("http://{}/token", listener.local_addr().unwrap())).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 16]).unwrap();
            std::thread::sleep(late);
            let body = "{\"access_token\": \"abc\"}";
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
            // The request is read to its end, because closing would discard the answer otherwise.
            let _ = stream.read(&mut [0; 4096]);
        });
        url
    }

    #[test]
    fn a_machine_may_answer_late_or_have_no_service_unless_the_environment_names_it() {
        let timeout = Duration::from_secs(30);
        let ask = |url: &Url, is_named| {
            let service = TokenService::near(timeout, url.clone()).unwrap();
            let header = ("metadata", Secret("true".into()));
            service.of_machine(header, is_named, "the service", &Deadline::after(timeout))
        };
        let late = ask(&service(Duration::from_millis(1300)), false).unwrap();
        assert_eq!(late.value, Some(Secret("Bearer abc".into())));
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let nobody = Url::parse(&format!("http://{closed}/token")).unwrap();
        assert_eq!(ask(&nobody, false).unwrap().value, None);
        assert!(matches!(ask(&nobody, true), Err(AttemptError::Transient { .. })));
    }
}
