"""Tag names in sentences, with word vectors for words that training never saw."""

import random

import lossnet

draw = random.Random(0)
people, places = ["Ann", "Bo", "Carla", "Dan"], ["Rome", "Oslo", "Paris", "Lima"]
sentences, tags = [], []
for _ in range(60):
    verb = draw.choice(["saw", "left", "likes"])
    sentences.append([draw.choice(people), "Lee", verb, draw.choice(places), "today"])
    tags.append(["B-PER", "I-PER", "O", "B-LOC", "O"])

vectors = {person.lower(): [1.0, 0.0] for person in [*people, "Eve"]}
vectors |= {place.lower(): [0.0, 1.0] for place in [*places, "Cairo"]}

tagger = lossnet.SequenceTagger(
    method="crf", epochs=8, batch_size=8, learning_rate=0.01, embeddings=vectors, random_state=0
)
tagger.fit(sentences, tags)
for tokens in (["Eve", "Lee", "left", "Cairo", "today"], ["Bo", "Lee", "likes", "Lima"]):
    print(*(f"{token}/{tag}" for token, tag in zip(tokens, tagger.predict([tokens])[0], strict=True)))
