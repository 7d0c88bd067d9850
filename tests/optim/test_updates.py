"""Each optimizer against its paper's update, written out with NumPy in float64 on small matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marin.errors import ConfigError
from marin.optim import AdamConfig, MuonConfig, OptimizerConfig
from marin.optim.ademamix import AdemamixConfig
from marin.optim.adopt import AdoptConfig
from marin.optim.config import parameter_role
from marin.optim.hyperball import AdamHConfig, MuonHConfig
from marin.optim.lion import LionConfig
from marin.optim.mars import MarsConfig
from marin.optim.normuon import NorMuonConfig
from marin.optim.orthogonalize import POLAR_EXPRESS
from marin.optim.scion import ScionConfig
from marin.optim.soap import SoapConfig, scale_by_soap
from marin.optim.sophia import SophiaConfig

STEPS = 7
# Powers of two, which float32 schedules hold exactly.
RATE, DECAY = 2.0**-3, 2.0**-4
SHAPES = {
    "embedding.weight_VD": (5, 3),
    "blocks.up.weight_IO": (3, 6),
    "blocks.down.weight_IO": (6, 3),
    "blocks.output.weight_IO": (4, 4),
    "norm.weight_D": (3,),
    "lm_head.weight_IO": (3, 5),
}
MATRICES = [path for path in SHAPES if path.startswith("blocks")]
COMMON = {"learning_rate": RATE, "weight_decay": DECAY, "lr_schedule": "constant", "warmup": 0}
PLAIN = COMMON | {"max_grad_norm": None}


@pytest.fixture(autouse=True)
def _float64():
    """Optax raises float decay rates to integer counts; the training step allows it that too."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def _start() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {path: random.normal(size=shape) for path, shape in SHAPES.items()}


def _gradients() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [{path: random.normal(size=shape) for path, shape in SHAPES.items()} for _ in range(STEPS)]


def _ours(config: OptimizerConfig, gradients: list[dict[str, np.ndarray]], **extra: object) -> dict[str, np.ndarray]:
    """Weights after these gradients."""
    params = {path: jnp.asarray(value) for path, value in _start().items()}
    optimizer = optax.with_extra_args_support(config.build(params, STEPS))

    @jax.jit
    def step(gradients, state, params):
        updates, state = optimizer.update(gradients, state, params, **extra)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for gradient in gradients:
        params, state = step({path: jnp.asarray(g) for path, g in gradient.items()}, state, params)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float64)}
    return {path: np.asarray(value) for path, value in params.items()}


def _decay_of(path: str) -> float:
    return DECAY if len(SHAPES[path]) == 2 else 0.0


def _written_out(rule, paths=tuple(SHAPES), decay_of=_decay_of, gradients=None) -> dict[str, np.ndarray]:
    """Weights after W <- W - RATE (direction + decay W); `rule(path)` gives a function from (gradient, t) to direction."""
    weights = _start()
    for path in paths:
        direction = rule(path)
        for t, gradient in enumerate(gradients or _gradients(), start=1):
            weights[path] = weights[path] - RATE * (direction(gradient[path], t) + decay_of(path) * weights[path])
    return {path: weights[path] for path in paths}


def _check(ours: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 1e-10) -> None:
    for path, value in expected.items():
        np.testing.assert_allclose(ours[path], value, rtol=tolerance, atol=tolerance, err_msg=path)


def _adam(beta1: float, beta2: float, epsilon: float, nesterov: bool = False):
    def rule(path: str):
        m = v = np.zeros(SHAPES[path])

        def direction(g, t):
            nonlocal m, v
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
            mean = m / (1 - beta1**t)
            if nesterov:
                mean = beta1 * m / (1 - beta1 ** (t + 1)) + (1 - beta1) * g / (1 - beta1**t)
            return mean / (np.sqrt(v / (1 - beta2**t)) + epsilon)

        return direction

    return rule


def _orthogonal(g: np.ndarray, coefficients, steps: int, epsilon: float, margin: float = 1.0) -> np.ndarray:
    x = g / (np.linalg.norm(g) * margin + epsilon)
    for step in range(steps):
        a, b, c = coefficients[min(step, len(coefficients) - 1)]
        x = a * x + b * (x @ x.T) @ x + c * (x @ x.T) @ (x @ x.T) @ x
    return x


def _quintic(g: np.ndarray, steps: int = 5, epsilon: float = 1e-8) -> np.ndarray:
    return _orthogonal(g, [(3.4445, -4.7750, 2.0315)], steps, epsilon)


def test_adamw_follows_its_paper():
    _check(
        _ours(AdamConfig(**PLAIN, beta1=0.8, beta2=0.9, epsilon=1e-3), _gradients()),
        _written_out(_adam(0.8, 0.9, 1e-3)),
    )


def test_adamw_with_nesterov_follows_its_paper():
    config = AdamConfig(**PLAIN, beta1=0.8, beta2=0.9, nesterov=True)
    _check(_ours(config, _gradients()), _written_out(_adam(0.8, 0.9, 1e-8, nesterov=True)))


def test_lion_follows_its_paper():
    def rule(path: str):
        m = np.zeros(SHAPES[path])

        def direction(g, t):
            nonlocal m
            sign, m = np.sign(0.7 * m + 0.3 * g), 0.9 * m + 0.1 * g
            return sign

        return direction

    _check(_ours(LionConfig(**PLAIN, beta1=0.7, beta2=0.9), _gradients()), _written_out(rule))


def test_adopt_follows_its_paper():
    def rule(path: str):
        m = v = np.zeros(SHAPES[path])

        def direction(g, t):
            nonlocal m, v
            if t == 1:  # v_0 = g_0^2, and nothing moves
                v = g**2
                return np.zeros_like(g)
            limit = (t - 1) ** 0.25
            m = 0.8 * m + 0.2 * np.clip(g / np.maximum(np.sqrt(v), 1e-6), -limit, limit)
            v = 0.9 * v + 0.1 * g**2
            return m

        return direction

    # Optax takes the fourth root of the step in float32.
    _check(_ours(AdoptConfig(**PLAIN, beta1=0.8, beta2=0.9), _gradients()), _written_out(rule), 1e-6)


@pytest.mark.parametrize("ramp", [1.0, 3, 0.0])
def test_ademamix_follows_its_paper(ramp: float):
    beta1, beta2, beta3, alpha, epsilon = 0.8, 0.9, 0.99, 5.0, 1e-3
    length = STEPS if ramp == 1.0 else max(1, ramp)

    def rule(path: str):
        m1 = m2 = v = np.zeros(SHAPES[path])

        def direction(g, t):
            nonlocal m1, m2, v
            part = min(t / length, 1.0)
            half_life = (1 - part) / np.log(beta1) + part / np.log(beta3)  # up to the factor log(1/2)
            slow = np.exp(1 / half_life)
            m1, m2 = beta1 * m1 + (1 - beta1) * g, slow * m2 + (1 - slow) * g
            v = beta2 * v + (1 - beta2) * g**2
            return (m1 / (1 - beta1**t) + alpha * part * m2) / (np.sqrt(v / (1 - beta2**t)) + epsilon)

        return direction

    config = AdemamixConfig(**PLAIN, beta1=beta1, beta2=beta2, beta3=beta3, alpha=alpha, ramp=ramp, epsilon=epsilon)
    _check(_ours(config, _gradients()), _written_out(rule))


def test_mars_follows_its_paper():
    beta1, gamma = 0.9, 0.5
    gradients, corrected = _gradients(), []
    for t, gradient in enumerate(gradients):
        last = gradients[max(t - 1, 0)]
        c = {p: g + gamma * beta1 / (1 - beta1) * (g - last[p]) for p, g in gradient.items()}
        norm = np.sqrt(sum(np.sum(g**2) for g in c.values()))
        corrected.append({p: g / max(1.0, norm) for p, g in c.items()})
    config = MarsConfig(**COMMON, beta1=beta1, beta2=0.8, gamma=gamma)
    _check(_ours(config, gradients), _written_out(_adam(beta1, 0.8, 1e-8), gradients=corrected))


def test_sophia_follows_its_paper_where_the_hessian_is_known():
    """The loss is half a weighted sum of squares: its Hessian is diagonal, so the estimate is exact for any signs."""
    beta1, beta2, gamma, every = 0.8, 0.6, 0.5, 3
    curvature = {path: np.random.default_rng(2).uniform(-1, 3, shape) for path, shape in SHAPES.items()}

    def loss(params):
        return sum(jnp.sum(0.5 * curvature[path] * params[path] ** 2) for path in SHAPES)

    def rule(path: str):
        m = h = np.zeros(SHAPES[path])

        def direction(g, t):
            nonlocal m, h
            m = beta1 * m + (1 - beta1) * g
            if t % every == 1:
                h = beta2 * h + (1 - beta2) * curvature[path]
            return np.clip(m / np.maximum(gamma * h, 1e-12), -1, 1)

        return direction

    config = SophiaConfig(**PLAIN, beta1=beta1, beta2=beta2, gamma=gamma, update_interval=every)
    _check(_ours(config, _gradients(), obj_fn=loss), _written_out(rule))


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("kimi", [True, False])
def test_muon_follows_its_description_and_gives_the_rest_to_adamw(nesterov: bool, kimi: bool):
    def rule(path: str):
        m = np.zeros(SHAPES[path])
        inputs, outputs = SHAPES[path]
        scale = 0.2 * np.sqrt(max(inputs, outputs)) if kimi else np.sqrt(max(1, outputs / inputs))

        def direction(g, t):
            nonlocal m
            m = 0.9 * m + g
            return scale * _quintic(0.9 * m + g if nesterov else m, steps=4)

        return direction

    config = MuonConfig(
        **PLAIN,
        adam_lr=RATE,
        momentum=0.9,
        nesterov=nesterov,
        backend_steps=4,
        use_kimi_scaling=kimi,
        beta1=0.8,
        beta2=0.9,
    )
    expected = _written_out(_adam(0.8, 0.9, 1e-8)) | _written_out(rule, MATRICES)
    _check(_ours(config, _gradients()), expected)


@pytest.mark.parametrize("kimi", [True, False])
def test_normuon_follows_its_paper_with_polar_express_and_cautious_decay(kimi: bool):
    weights = _start()
    for path in MATRICES:
        m, v = np.zeros(SHAPES[path]), np.zeros(SHAPES[path][1])
        inputs, outputs = SHAPES[path]
        # The paper's 0.2 sqrt(mn); or Muon's size, that of an orthogonal matrix times its scale.
        size = 0.2 * np.sqrt(inputs * outputs) if kimi else np.sqrt(min(inputs, outputs) * max(1, outputs / inputs))
        for gradient in _gradients():
            m = 0.9 * m + gradient[path]
            u = _orthogonal(0.9 * m + gradient[path], POLAR_EXPRESS, 5, 1e-8, margin=1.01)
            v = 0.8 * v + 0.2 * np.mean(u**2, axis=0)
            u = u / (np.sqrt(v) + 1e-8)
            u = u * size / np.linalg.norm(u)
            weights[path] = weights[path] - RATE * (u + DECAY * np.where(u * weights[path] >= 0, weights[path], 0))
    config = NorMuonConfig(**PLAIN, adam_lr=RATE, momentum=0.9, variance_beta=0.8, use_kimi_scaling=kimi)
    _check(_ours(config, _gradients()), {path: weights[path] for path in MATRICES})


def test_normuon_without_its_settings_is_muon():
    options = COMMON | {"momentum": 0.9, "use_kimi_scaling": False}
    plain = NorMuonConfig(**options, variance_beta=None, coefficients="quintic", cautious_decay=False)
    _check(_ours(plain, _gradients()), _ours(MuonConfig(**options), _gradients()), 0.0)


def _hyperball(rule) -> dict[str, np.ndarray]:
    weights = _start()
    for path in MATRICES:
        direction, radius = rule(path), np.linalg.norm(weights[path])
        for t, gradient in enumerate(_gradients(), start=1):
            u = direction(gradient[path], t)
            moved = weights[path] - RATE * radius * u / np.linalg.norm(u)
            weights[path] = radius * moved / np.linalg.norm(moved)
    return {path: weights[path] for path in MATRICES}


def test_adamh_follows_its_paper_and_gives_the_rest_to_adamw():
    config = AdamHConfig(**PLAIN, adam_lr=RATE, beta1=0.8, beta2=0.9)
    adam = _adam(0.8, 0.9, 1e-8)
    _check(_ours(config, _gradients()), _written_out(adam) | _hyperball(adam))


def test_adamh_clips_the_gradients_of_the_matrices_by_their_norm():
    """One gradient far above the others does not rule the moments of the steps after it."""
    gradients, options = _gradients(), {"adam_lr": RATE, "beta1": 0.8, "beta2": 0.9}
    gradients[2] = {path: 1e3 * gradient for path, gradient in gradients[2].items()}
    clipped = []
    for gradient in gradients:
        norm = np.sqrt(sum(np.sum(gradient[path] ** 2) for path in MATRICES))
        clipped.append({path: g / max(1.0, norm) for path, g in gradient.items()})
    ours = _ours(AdamHConfig(**COMMON, **options, max_grad_norm=1.0), gradients)
    expected = _ours(AdamHConfig(**PLAIN, **options), clipped)
    _check(ours, {path: expected[path] for path in MATRICES})


def test_muonh_follows_its_paper_and_keeps_the_norm_of_every_matrix():
    def rule(path: str):
        m = np.zeros(SHAPES[path])

        def direction(g, t):
            nonlocal m
            m = 0.9 * m + g
            return _quintic(0.9 * m + g)

        return direction

    ours = _ours(MuonHConfig(**PLAIN, momentum=0.9), _gradients())
    _check(ours, _hyperball(rule))
    for path in MATRICES:
        assert np.linalg.norm(ours[path]) == pytest.approx(np.linalg.norm(_start()[path]), rel=1e-12)


def test_muonh_refuses_a_scale_that_it_does_not_use():
    with pytest.raises(ConfigError, match="use_kimi_scaling"):
        MuonHConfig(use_kimi_scaling=True)


@pytest.mark.parametrize("decay", [1.0, 0.0], ids=["constrained", "unconstrained"])
def test_scion_follows_its_paper(decay: float):
    alpha, radii = 0.25, {"matrix": 3.0, "head": 4.0, "embedding": 5.0, "other": 6.0}

    def rule(path: str):
        d = np.zeros(SHAPES[path])
        role = parameter_role(path, d)

        def direction(g, t):
            nonlocal d
            d = (1 - alpha) * d + alpha * g
            if role == "matrix":
                inputs, outputs = SHAPES[path]
                return radii[role] * np.sqrt(outputs / inputs) * _quintic(d)
            if role == "other":
                return radii[role] * d / (np.sqrt(np.mean(d**2)) + 1e-8)
            return radii[role] * np.sign(d) / (SHAPES[path][0] if role == "head" else 1)

        return direction

    config = ScionConfig(
        **COMMON | {"weight_decay": decay},
        alpha=alpha,
        hidden_radius=3.0,
        head_radius=4.0,
        embedding_radius=5.0,
        other_radius=6.0,
    )
    _check(_ours(config, _gradients()), _written_out(rule, decay_of=lambda path: decay))


def test_scion_with_its_decay_stays_in_the_ball_of_each_parameter():
    config = ScionConfig(learning_rate=0.5, lr_schedule="constant", warmup=0, head_radius=4.0, embedding_radius=2.0)
    ours = _ours(config, _gradients() * 4)
    assert np.abs(ours["embedding.weight_VD"]).max() <= 2.0 + 1e-6
    assert np.abs(ours["lm_head.weight_IO"]).max() <= 4.0 / 3 + 1e-6


@pytest.mark.parametrize("longest", [4, 0])
def test_soap_follows_its_paper_with_both_sides_one_or_none_rotated(longest: int):
    """Sides whose products have a null space are left out: any basis of it would do, and the two libraries choose differently."""
    beta1, beta2, epsilon, every = 0.8, 0.9, 1e-3, 3

    def rule(path: str):
        shape = SHAPES[path]
        m = v = np.zeros(shape)
        # Never the vocabulary's side.
        allowed = {"matrix": (0, 1), "embedding": (1,), "head": (0,), "other": ()}[parameter_role(path, m)]
        sides = [i for i in allowed if shape[i] <= longest]
        products = {i: np.zeros((shape[i], shape[i])) for i in sides}
        basis = {i: np.eye(shape[i]) for i in sides}

        def turned(x, back=False):
            if 0 in sides:
                x = (basis[0] if back else basis[0].T) @ x
            if 1 in sides:
                x = x @ (basis[1].T if back else basis[1])
            return x

        def direction(g, t):
            nonlocal m, v
            u, taken = np.zeros(shape), t - 1  # the first gradient gives the first basis only
            if taken:
                m = beta1 * m + (1 - beta1) * g
                v = beta2 * v + (1 - beta2) * turned(g) ** 2
                mean = turned(m) / (1 - beta1**taken)
                u = turned(mean / (np.sqrt(v / (1 - beta2**taken)) + epsilon), back=True)
            for i in sides:
                products[i] = beta2 * products[i] + (1 - beta2) * (g @ g.T if i == 0 else g.T @ g)
                if not taken:
                    basis[i] = np.linalg.eigh(products[i])[1][:, ::-1]
                elif taken % every == 0:
                    basis[i] = np.linalg.qr(products[i] @ basis[i])[0]
            return u

        return direction

    config = SoapConfig(
        **PLAIN, beta1=beta1, beta2=beta2, epsilon=epsilon, precondition_frequency=every, max_precondition_dim=longest
    )
    _check(_ours(config, _gradients()), _written_out(rule))


@pytest.mark.parametrize(
    ("shape", "longest", "repeats"), [((32, 33), 33, True), ((32, 48), 48, False), ((32, 48), 32, True)]
)
def test_soap_repeats_with_other_rounding_where_no_product_has_a_null_space_of_several_dimensions(
    shape, longest, repeats
):
    soap = scale_by_soap(SoapConfig(max_precondition_dim=longest))
    update = jax.jit(soap.update)
    draw = np.random.default_rng(0)
    gradients = [draw.normal(size=shape) for _ in range(3)]
    rounding = [1 + 1e-7 * draw.normal(size=shape) for _ in range(3)]

    def last_direction(gradients):
        state = soap.init({"up": {"weight_IO": jnp.zeros(shape, jnp.float32)}})
        for gradient in gradients:
            directions, state = update({"up": {"weight_IO": jnp.asarray(gradient, jnp.float32)}}, state)
        return directions["up"]["weight_IO"]

    rounded = [gradient * other for gradient, other in zip(gradients, rounding, strict=True)]
    gap = float(jnp.max(jnp.abs(last_direction(gradients) - last_direction(rounded))))
    assert gap < 0.01 if repeats else gap > 0.1


def test_clipping_divides_by_the_norm_of_all_parameters_together():
    gradients = _gradients()
    norms = [np.sqrt(sum(np.sum(g**2) for g in gradient.values())) for gradient in gradients]
    clipped = [
        {p: g * min(1, 0.5 / n) for p, g in gradient.items()} for gradient, n in zip(gradients, norms, strict=True)
    ]
    config = AdamConfig(**COMMON, max_grad_norm=0.5, beta1=0.8, beta2=0.9, epsilon=1e-3)
    _check(_ours(config, gradients), _written_out(_adam(0.8, 0.9, 1e-3), gradients=clipped))
