//! Protocol buffers' text format, as far as `config.pbtxt` uses it: fields, messages, lists, strings, comments.

/// Messages within messages: a configuration has four.
const DEPTH_MAX: usize = 32;
/// Fields of a file.
const FIELDS_MAX: usize = 100_000;

/// A field, once for each element of a list.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Field {
    pub(super) name: String,
    /// From 1.
    pub(super) line: usize,
    pub(super) value: Value,
}

/// What a field has.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    /// A number or a word, as it is written.
    Scalar(String),
    Text(String),
    Message(Vec<Field>),
}

/// Where a text is none, and why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub(super) struct Broken {
    pub(super) line: usize,
    pub(super) what: String,
}

/// The fields of a text.
pub(super) fn parse(text: &str) -> Result<Vec<Field>, Broken> {
    let mut parser = Parser { rest: text, line: 1, fields: 0 };
    let fields = parser.fields(0)?;
    match parser.peek() {
        None => Ok(fields),
        Some(other) => Err(parser.broken(format!("{other:?} closes nothing"))),
    }
}

struct Parser<'a> {
    rest: &'a str,
    line: usize,
    fields: usize,
}

impl Parser<'_> {
    /// Until the end or a closing bracket, which stays.
    fn fields(&mut self, depth: usize) -> Result<Vec<Field>, Broken> {
        if depth > DEPTH_MAX {
            return Err(self.broken(format!("more than {DEPTH_MAX} messages within each other")));
        }
        let mut fields = Vec::new();
        while self.peek().is_some_and(|next| next != '}' && next != '>') {
            let line = self.line;
            let name = self.word()?;
            let has_colon = self.take(':');
            let mut add = |value| fields.push(Field { name: name.clone(), line, value });
            if self.take('[') {
                self.list(depth, &mut add)?;
            } else {
                let value = self.value(depth)?;
                if !has_colon && !matches!(value, Value::Message(_)) {
                    return Err(self.broken(format!("a colon is missing behind {name}")));
                }
                add(value);
            }
            let _ = self.take(',') || self.take(';');
        }
        Ok(fields)
    }

    fn list(&mut self, depth: usize, add: &mut impl FnMut(Value)) -> Result<(), Broken> {
        if self.take(']') {
            return Ok(());
        }
        loop {
            add(self.value(depth)?);
            if self.take(']') {
                return Ok(());
            }
            if !self.take(',') {
                return Err(self.broken("a list goes on without a comma".to_owned()));
            }
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, Broken> {
        self.fields += 1;
        if self.fields > FIELDS_MAX {
            return Err(self.broken(format!("more than {FIELDS_MAX} fields")));
        }
        match self.peek() {
            Some(open @ ('{' | '<')) => {
                self.take(open);
                let fields = self.fields(depth + 1)?;
                let close = if open == '{' { '}' } else { '>' };
                if !self.take(close) {
                    return Err(self.broken(format!("a message is not closed by {close:?}")));
                }
                Ok(Value::Message(fields))
            }
            Some('"' | '\'') => self.text().map(Value::Text),
            _ => self.word().map(Value::Scalar),
        }
    }

    /// Strings behind each other are one.
    fn text(&mut self) -> Result<String, Broken> {
        let mut text = String::new();
        while let Some(quote @ ('"' | '\'')) = self.peek() {
            self.take(quote);
            let mut chars = self.rest.char_indices();
            loop {
                match chars.next() {
                    Some((at, end)) if end == quote => {
                        self.rest = &self.rest[at + 1..];
                        break;
                    }
                    Some((_, '\\')) => match chars.next() {
                        Some((_, 'n')) => text.push('\n'),
                        Some((_, 't')) => text.push('\t'),
                        Some((_, kept @ ('\\' | '"' | '\''))) => text.push(kept),
                        _ => {
                            return Err(
                                self.broken("a string has an escape that no name needs".to_owned())
                            );
                        }
                    },
                    None | Some((_, '\n')) => {
                        return Err(self.broken("a string is not closed on its line".to_owned()));
                    }
                    Some((_, other)) => text.push(other),
                }
            }
        }
        Ok(text)
    }

    fn word(&mut self) -> Result<String, Broken> {
        self.peek();
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_.+-".contains(c);
        let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        if end == 0 {
            let found =
                self.rest.chars().next().map_or_else(|| "the end".to_owned(), |c| format!("{c:?}"));
            return Err(self.broken(format!("a name or a value is missing before {found}")));
        }
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(word.to_owned())
    }

    fn take(&mut self, expected: char) -> bool {
        let is_there = self.peek() == Some(expected);
        if is_there {
            self.rest = &self.rest[expected.len_utf8()..];
        }
        is_there
    }

    /// The next character that is neither space nor comment.
    fn peek(&mut self) -> Option<char> {
        loop {
            let next = self.rest.chars().next()?;
            if next == '#' {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.rest = &self.rest[end..];
            } else if next.is_whitespace() {
                self.line += usize::from(next == '\n');
                self.rest = &self.rest[next.len_utf8()..];
            } else {
                return Some(next);
            }
        }
    }

    fn broken(&self, what: String) -> Broken {
        Broken { line: self.line, what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(name: &str, line: usize, value: &str) -> Field {
        Field { name: name.into(), line, value: Value::Scalar(value.into()) }
    }

    #[test]
    fn fields_messages_and_lists_are_read_with_their_lines() {
        let text = "# a model\nname: \"m\"  # its name\nmax_batch_size: 8\n\
            input [ { name: 'x' dims: [ 3, -1 ] }, { name: \"y\" } ]\ninstance_group { kind: KIND_GPU; count: 2, }\n\
            parameters < key: \"a\" \"b\\n\" >\nempty: []\n";
        let fields = parse(text).unwrap();
        assert_eq!(fields[0].value, Value::Text("m".into()));
        assert_eq!(fields[1], scalar("max_batch_size", 3, "8"));
        let name = Field { name: "name".into(), line: 4, value: Value::Text("x".into()) };
        let x = vec![name, scalar("dims", 4, "3"), scalar("dims", 4, "-1")];
        assert_eq!(fields[2].value, Value::Message(x));
        assert_eq!((fields[3].name.as_str(), fields.len()), ("input", 6));
        let group = vec![scalar("kind", 5, "KIND_GPU"), scalar("count", 5, "2")];
        assert_eq!(fields[4].value, Value::Message(group));
        let key = Field { name: "key".into(), line: 6, value: Value::Text("ab\n".into()) };
        assert_eq!(fields[5].value, Value::Message(vec![key]));
    }

    #[test]
    fn what_is_no_text_format_is_refused_with_its_line() {
        for (text, line, words) in [
            ("a: 1\n}", 2, "closes nothing"),
            ("a 1", 1, "a colon is missing behind a"),
            ("a: \"b\nc: 1", 1, "not closed on its line"),
            ("a {\n b: 1", 2, "not closed by '}'"),
            ("a: [1 2]", 1, "without a comma"),
            ("a: \"\\x41\"", 1, "escape"),
            ("a: ,", 1, "before ','"),
            ("a", 1, "before the end"),
        ] {
            let broken = parse(text).unwrap_err();
            assert!(broken.line == line && broken.what.contains(words), "{text}: {broken}");
        }
        let deep = "a {".repeat(DEPTH_MAX + 2);
        assert!(parse(&deep).unwrap_err().what.contains("within each other"));
        assert_eq!(parse(" # nothing"), Ok(Vec::new()));
    }
}
