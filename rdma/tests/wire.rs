//! The wire codec: every kind survives the round trip in any pieces, nothing makes it panic, and
//! the bytes of a few messages are pinned down for ever.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use baton_rdma::frame::{self, FrameBuffer, HEADER_LEN};
use baton_rdma::wire::*;
use baton_topo::signature::{ElementType, Extent, INPUT_BYTES_MAX, TensorSpec};
use baton_types::{CostHint, GpuId, ModelId, Nanos, Request, TaskId};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

/// A frame with its payload as bytes, and what a receiver must make of it.
#[derive(Clone, Debug)]
struct Sample {
    kind: Kind,
    body: Vec<u8>,
    payload: Vec<u8>,
    bytes: Vec<u8>,
}

/// What a receiver made of a stream.
#[derive(PartialEq, Eq, Debug)]
struct Received {
    frames: Vec<(Kind, Vec<u8>, Vec<u8>)>,
    error: Option<DecodeError>,
    mid_frame: bool,
}

/// Feeds `bytes` to the receive path in pieces of the given lengths, repeated.
fn receive(bytes: &[u8], pieces: &[usize]) -> Received {
    let mut buffer = FrameBuffer::new();
    let mut received = Received { frames: Vec::new(), error: None, mid_frame: false };
    let mut payload = Vec::new();
    let mut rest = bytes;
    for &piece in pieces.iter().cycle() {
        let spare = buffer.spare(piece.max(1));
        let n = spare.len().min(rest.len());
        spare[..n].copy_from_slice(&rest[..n]);
        buffer.filled(n);
        rest = &rest[n..];
        if let Err(error) = take_in(&mut buffer, &mut received, &mut payload) {
            received.error = Some(error);
            break;
        }
        if n == 0 {
            break;
        }
    }
    received.mid_frame = buffer.mid_frame();
    received
}

fn take_in(
    buffer: &mut FrameBuffer,
    received: &mut Received,
    payload: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    loop {
        if buffer.payload_left() > 0 {
            let mut place = vec![0; buffer.payload_left()];
            let taken = buffer.take_payload(&mut place);
            payload.extend_from_slice(&place[..taken]);
            if buffer.payload_left() > 0 {
                return Ok(());
            }
        }
        if let Some(frame) = received.frames.last_mut()
            && !payload.is_empty()
        {
            frame.2 = std::mem::take(payload);
        }
        let Some(frame) = buffer.next_frame()? else { return Ok(()) };
        assert_eq!(frame.message.kind(), frame.kind);
        received.frames.push((frame.kind, frame.body.to_vec(), Vec::new()));
    }
}

fn sample<B: Body + FromBytes>(head: &[u8], tail: &[u8], payload: &[u8]) -> Sample {
    let head = B::read_from_bytes(&head[..size_of::<B>()]).unwrap();
    let carries = matches!(B::KIND, Kind::ReadReply | Kind::TaskResult);
    let payload = if carries { payload.to_vec() } else { Vec::new() };
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, &head, tail, payload.len());
    let body = bytes[HEADER_LEN..].to_vec();
    bytes.extend_from_slice(&payload);
    Sample { kind: B::KIND, body, payload, bytes }
}

/// Makes a sample of each kind and checks that none is missing.
macro_rules! samples {
    ($head:expr, $payload:expr; $($name:ident $tail:expr,)*) => {{
        let kinds = [$(Kind::$name,)*];
        assert_eq!(kinds.as_slice(), Kind::ALL, "a kind is missing in this test");
        [$(sample::<$name>($head, $tail, $payload),)*]
    }};
}

fn samples(head: &[u8; 44], text: &str, words: &[u64], payload: &[u8]) -> Vec<Sample> {
    let (text, words) = (text.as_bytes(), words.as_bytes());
    let tasks = &words[..words.len() / size_of::<ActionTask>() * size_of::<ActionTask>()];
    let (models, rows) = (words, &words[..words.len() / 4]);
    let mut all = samples!(head, payload;
        Hello &[], Welcome &[], Refuse text, ThreadDesc &[], ModelDesc text, TensorDesc text, VariantDesc text, SubclusterDesc text,
        CatalogEnd &[], JoinFrontend &[], SlabDesc &[], JoinBackend text, ProfileDesc words,
        SlotMemory models, JoinAck &[], Ready &[], ReadyAck &[], PeerUp &[], PeerDown &[], Leave &[], LeaveAck &[], Ping &[],
        Pong &[], Pace &[], ModelTable text, ModelDown &[], SlabKnown &[], ModelFailed text, CatalogChange text,
        CatalogChanged text, StatusAsk &[], StatusPart text, Submit &[], Cancel &[], TaskEnd &[], Action tasks, ActionDone rows,
        Load models, LoadDone &[], Read &[],
        ReadReply &[], TaskResult &[], FabricOffer text, FabricAnswer text, FabricSlab &[],
        ControlOffer text, ControlAnswer text, ControlStart &[], MemoryOffer &[],
    );
    all.rotate_left(usize::from(head[0]) % Kind::ALL.len());
    all.to_vec()
}

prop_compose! {
    fn any_samples()(
        head in any::<[u8; 44]>(),
        text in "\\PC{0,40}",
        words in prop::collection::vec(any::<u64>(), 0..80),
        payload in prop::collection::vec(any::<u8>(), 0..5_000),
    ) -> Vec<Sample> {
        samples(&head, &text, &words, &payload)
    }
}

fn any_pieces() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1usize..40, 1usize..70_000], 1..8)
}

proptest! {
    /// Every kind, in any pieces, arrives as it was sent.
    #[test]
    fn round_trip(samples in any_samples(), pieces in any_pieces()) {
        let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.bytes.clone()).collect();
        let received = receive(&bytes, &pieces);
        prop_assert_eq!(received.error, None);
        prop_assert!(!received.mid_frame);
        let sent: Vec<_> = samples.into_iter().map(|s| (s.kind, s.body, s.payload)).collect();
        prop_assert_eq!(received.frames, sent);
    }

    /// A stream that stops anywhere yields the frames before that and no error.
    #[test]
    fn truncated(samples in any_samples(), cut in any::<prop::sample::Index>()) {
        let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.bytes.clone()).collect();
        let cut = cut.index(bytes.len());
        let received = receive(&bytes[..cut], &[4096]);
        let mut ends = samples.iter().scan(0, |end, sample| {
            *end += sample.bytes.len();
            Some(*end)
        });
        prop_assert_eq!(received.error, None);
        prop_assert_eq!(received.mid_frame, cut != 0 && !ends.any(|end| end == cut));
    }

    /// Arbitrary bytes are refused or taken, never a panic; and how they are cut into pieces makes
    /// no difference.
    #[test]
    fn arbitrary(bytes in prop::collection::vec(any::<u8>(), 0..4_000), pieces in any_pieces()) {
        prop_assert_eq!(receive(&bytes, &pieces), receive(&bytes, &[bytes.len() + 1]));
    }

    /// The same for bytes that are nearly right: valid frames with a few bytes changed.
    #[test]
    fn nearly_right(
        samples in any_samples(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        pieces in any_pieces(),
    ) {
        let mut bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.bytes.clone()).collect();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        prop_assert_eq!(receive(&bytes, &pieces), receive(&bytes, &[1 << 20]));
    }

    /// A body of any bytes decodes or is refused, for every kind.
    #[test]
    fn any_body(body in prop::collection::vec(any::<u8>(), 0..120)) {
        for &kind in Kind::ALL {
            if let Ok(message) = decode(kind, &body) {
                prop_assert_eq!(message.kind(), kind);
            }
        }
    }
}

fn encoded<B: Body>(body: &B, tail: &[u8], payload_len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, body, tail, payload_len);
    bytes
}

/// The protocol, byte by byte. A change here is a change of the protocol, and of its version once one is
/// released.
#[test]
fn golden_bytes() {
    let hello = Hello::new(Role::Backend, 7, 0x1122_3344_5566_7788);
    assert_eq!(
        encoded(&hello, &[], 0),
        [
            1, 0, 24, 0, 0, 0, 0, 0, // header: kind, reserved, body, payload
            b'B', b'A', b'T', b'N', 1, 0, 4, 0, 2, 0, 0, 0, 7, 0, 0, 0, //
            0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
        ]
    );
    let slab = FabricSlab {
        first_slot: 1.into(),
        slots: 2.into(),
        stride: 3.into(),
        input_bytes: 4.into(),
        addr: 0x0506.into(),
        rkey: 7.into(),
        reserved: 0.into(),
    };
    assert_eq!(
        encoded(&slab, &[], 0),
        [
            72, 0, 32, 0, 0, 0, 0, 0, //
            1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, //
            6, 5, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0,
        ]
    );
    let offer = ControlOffer {
        pair: 1.into(),
        first_psn: 2.into(),
        lid: 3.into(),
        window: 4.into(),
        gid: [5; 16],
        buffer_bytes: 6.into(),
        timeout_us: 7.into(),
        mtu: 5,
        reserved: [0; 3],
    };
    assert_eq!(
        encoded(&offer, b"rxe0", 0),
        [
            73, 0, 44, 0, 0, 0, 0, 0, //
            1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 4, 0, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5,
            5, //
            6, 0, 0, 0, 7, 0, 0, 0, 5, 0, 0, 0, b'r', b'x', b'e', b'0',
        ]
    );
    assert_eq!(encoded(&ControlStart {}, &[], 0), [75, 0, 0, 0, 0, 0, 0, 0]);
    let offer = MemoryOffer { cookie: 0x0102.into(), socket: [3; 16] };
    assert_eq!(
        encoded(&offer, &[], 0),
        [
            76, 0, 24, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, //
            3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3,
        ]
    );
    let submit = Submit {
        task: 0x0102.into(),
        deadline_ns: 0x0304.into(),
        model: 5.into(),
        input_bytes: 6.into(),
        cost: 7.into(),
        accuracy_min: 80_160.into(),
    };
    assert_eq!(
        encoded(&submit, &[], 0),
        [
            40, 0, 32, 0, 0, 0, 0, 0, //
            2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0,
            0x20, 0x39, 1, 0,
        ]
    );
    let variant = VariantDesc { model: 1.into(), accuracy: 2.into() };
    assert_eq!(encoded(&variant, b"v", 0), [35, 0, 9, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, b'v']);
    let action = Action::infer(0x0102, [Nanos(3), Nanos(4)], ModelId(5), GpuId(6));
    let cost = CostHint::of_class(9);
    let request = Request { cost, input_bytes: 8, ..Request::new(TaskId(7), Nanos(1)) };
    assert_eq!(
        encoded(&action, ActionTask::new(&request).as_bytes(), 0),
        [
            43, 0, 52, 0, 0, 0, 0, 0, //
            2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, //
            5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, //
            7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0x80,
        ]
    );
    let reply = ReadReply { task: 9.into(), tag: 8.into(), status: 0, reserved: [0; 3] };
    assert_eq!(
        encoded(&reply, &[], 0x0001_0203),
        [
            61, 0, 16, 0, 3, 2, 1, 0, //
            9, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0,
        ]
    );
    let ask = StatusAsk { from: 0x0102.into() };
    assert_eq!(encoded(&ask, &[], 0), [33, 0, 8, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
    let part = StatusPart { next: 3.into() };
    assert_eq!(
        encoded(&part, b"{}", 0),
        [34, 0, 10, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, b'{', b'}']
    );
    let refuse = Refuse { code: (RefuseCode::Version as u16).into() };
    assert_eq!(encoded(&refuse, b"no", 0), [3, 0, 4, 0, 0, 0, 0, 0, 2, 0, b'n', b'o']);
}

/// What the header alone gives away is refused before the body is there.
#[test]
fn bad_headers() {
    let first = |header: [u8; 8]| receive(&header, &[8]).error;
    assert_eq!(first([0, 0, 0, 0, 0, 0, 0, 0]), Some(DecodeError::Kind(0)));
    assert_eq!(first([99, 0, 0, 0, 0, 0, 0, 0]), Some(DecodeError::Kind(99)));
    assert_eq!(first([40, 1, 28, 0, 0, 0, 0, 0]), Some(DecodeError::Reserved));
    assert_eq!(first([40, 0, 1, 0x80, 0, 0, 0, 0]), Some(DecodeError::BodyLength));
    assert_eq!(first([40, 0, 28, 0, 1, 0, 0, 0]), Some(DecodeError::PayloadLength));
    assert_eq!(first([61, 0, 16, 0, 1, 0, 0, 4]), Some(DecodeError::PayloadLength));
    assert_eq!(first([61, 0, 16, 0, 0, 0, 0, 4]), None);
}

/// Bodies whose length does not fit their kind.
#[test]
fn bad_bodies() {
    let lengths = [
        (Kind::Submit, size_of::<Submit>()),
        (Kind::TaskEnd, size_of::<TaskEnd>()),
        (Kind::JoinAck, size_of::<JoinAck>()),
        (Kind::Ping, size_of::<Ping>()),
    ];
    for (kind, bytes) in lengths {
        assert!(decode(kind, &vec![0; bytes]).is_ok(), "{kind:?}");
        for wrong in [bytes - 1, bytes + 1, 2 * bytes] {
            assert_eq!(decode(kind, &vec![0; wrong]), Err(DecodeError::BodyLength), "{kind:?}");
        }
    }
    assert_eq!(decode(Kind::Action, &[0; 36 + 15]), Err(DecodeError::BodyLength));
    assert_eq!(decode(Kind::Refuse, &[1, 0, 0xff]), Err(DecodeError::Text));
    assert!(decode(Kind::Action, &[0; 36 + 32]).is_ok());
}

/// The longest body passes through the buffer whatever surrounds it.
#[test]
fn longest_bodies() {
    let refuse = Refuse { code: 1.into() };
    let tail = vec![7; BODY_MAX - size_of::<Refuse>()];
    let bytes: Vec<u8> = (0..5).flat_map(|_| encoded(&refuse, &tail, 0)).collect();
    for piece in [1, 1000, 33_000, 1 << 20] {
        let received = receive(&bytes, &[piece]);
        assert_eq!((received.frames.len(), received.error), (5, None), "pieces of {piece}");
    }
}

/// What lies behind a frame with a payload is payload, whatever it looks like.
#[test]
fn no_frame_while_a_payload_is_pending() {
    let reply = ReadReply { task: 9.into(), tag: 8.into(), status: 0, reserved: [0; 3] };
    let ready = encoded(&Ready { reserved: 0.into() }, &[], 0);
    let bytes = [encoded(&reply, &[], ready.len()), ready.clone(), ready].concat();
    let mut buffer = FrameBuffer::new();
    buffer.spare(bytes.len()).copy_from_slice(&bytes);
    buffer.filled(bytes.len());
    assert_eq!(buffer.next_frame().unwrap().unwrap().kind, Kind::ReadReply);
    assert_eq!(buffer.next_frame(), Ok(None));
    assert_eq!(buffer.payload_left(), 12);
    buffer.skip_payload();
    assert_eq!(buffer.next_frame().unwrap().unwrap().kind, Kind::Ready);
    assert!(!buffer.mid_frame());
}

/// Versions overlap or not.
#[test]
fn common_version() {
    let speaking = |min: u16, max: u16| Hello {
        version_min: min.into(),
        version_max: max.into(),
        ..Hello::new(Role::Frontend, 0, 0)
    };
    assert_eq!(speaking(VERSION_MIN, VERSION_MAX).common_version(), Some(VERSION_MAX));
    assert_eq!(speaking(VERSION_MIN, VERSION_MIN).common_version(), Some(VERSION_MIN));
    assert_eq!(speaking(0, VERSION_MAX + 9).common_version(), Some(VERSION_MAX));
    assert_eq!(speaking(VERSION_MAX + 1, VERSION_MAX + 9).common_version(), None);
    assert_eq!(speaking(VERSION_MAX, 0).common_version(), None);
}

/// A task that was cold says so beside what it said before.
#[test]
fn cold_tasks() {
    for length in [0, 1, INPUT_BYTES_MAX] {
        let task = ActionTask { task: 9.into(), input_bytes: length.into(), cost: 5.into() };
        assert!(!task.is_cold());
        let cold = task.cold();
        assert_eq!((cold.is_cold(), cold.input_len(), cold.cold()), (true, length, cold));
        assert_eq!((cold.task, cold.cost), (task.task, task.cost));
    }
    for variant in [0, 1, u16::from(u8::MAX)] {
        let result = TaskResult {
            task: 9.into(),
            started_ns: 1.into(),
            finished_ns: 2.into(),
            batch_size: 3.into(),
            variant: variant.into(),
            gpu: 4.into(),
        };
        assert!(!result.is_cold());
        let cold = result.cold();
        assert_eq!((cold.is_cold(), cold.variant_index()), (true, variant));
        assert_eq!(TaskResult { variant: result.variant, ..cold }, result);
    }
}

#[test]
fn each_kind_of_change_has_its_code() {
    for kind in [ChangeKind::Add, ChangeKind::Set, ChangeKind::Remove] {
        assert_eq!(ChangeKind::from_code(kind as u8), Some(kind));
    }
    assert_eq!((ChangeKind::from_code(0), ChangeKind::from_code(4)), (None, None));
}

#[test]
fn a_tensor_is_described_with_what_may_be_shorter() {
    let shape = vec![Extent::Fixed(3), Extent::UpTo(512), Extent::Fixed(1)];
    let spec = TensorSpec { name: "tokens".into(), element: ElementType::F32, shape };
    for of_output in [false, true] {
        let desc = TensorDesc::new(7, of_output, &spec);
        assert_eq!((desc.model.get(), desc.side), (7, of_output.into()));
        assert_eq!(desc.spec("tokens"), Some(spec.clone()));
    }
}
